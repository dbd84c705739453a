//! Named points at which a test lets the process die, fail or wait: the boundaries at which everything may end.
//!
//!     TRIBUTARY_FAILPOINTS=committed=kill@3,fenced=error,chunk-read=delay:500
//!
//! `kill` ends the process as `kill -9` does, nothing is drained or told; `error` hands the caller a failure; `delay` waits so
//! many milliseconds. `@n`: only the nth time that the point is reached, and without it each time.
//!
//! Only builds with debug assertions know any of it: in a release each call is an empty function, and the variable means
//! nothing. What the names stand for is known to whoever reaches them.

/// A failure that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the failpoint {0} was told to fail")]
pub struct Injected(pub &'static str);

/// Reaches a point, on a thread that may wait.
#[inline(always)]
pub fn reach(point: &'static str) -> Result<(), Injected> {
    #[cfg(debug_assertions)]
    if let Some(delay) = armed::reach(point)? {
        std::thread::sleep(delay);
    }
    let _ = point;
    Ok(())
}

/// Reaches a point in a task, whose runtime has other work to do meanwhile.
#[inline(always)]
pub async fn reach_in_task(point: &'static str) -> Result<(), Injected> {
    #[cfg(debug_assertions)]
    if let Some(delay) = armed::reach(point)? {
        tokio::time::sleep(delay).await;
    }
    let _ = point;
    Ok(())
}

#[cfg(debug_assertions)]
mod armed {
    use std::str::FromStr;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::Injected;

    static PLAN: LazyLock<Vec<Armed>> = LazyLock::new(|| {
        let text = std::env::var("TRIBUTARY_FAILPOINTS").unwrap_or_default();
        // A test with a misspelt plan must not pass for one that survived it.
        parse(&text).unwrap_or_else(|part| panic!("TRIBUTARY_FAILPOINTS: {part:?} is none of point=kill, point=error, point=delay:MS, each with @N if wanted"))
    });

    #[derive(Debug, PartialEq, Eq)]
    enum Action {
        Kill,
        Error,
        Delay(Duration),
    }

    #[derive(Debug)]
    struct Armed {
        point: String,
        action: Action,
        /// The only time at which it acts; 0 for each time.
        time: u64,
        reached: AtomicU64,
    }

    pub(super) fn reach(point: &'static str) -> Result<Option<Duration>, Injected> {
        act(&PLAN, point)
    }

    fn act(plan: &[Armed], point: &'static str) -> Result<Option<Duration>, Injected> {
        for armed in plan.iter().filter(|armed| armed.point == point) {
            let times = armed.reached.fetch_add(1, Ordering::Relaxed) + 1;
            if armed.time != 0 && armed.time != times {
                continue;
            }
            match armed.action {
                Action::Kill => {
                    eprintln!("failpoint {point}: the process ends");
                    std::process::abort()
                }
                Action::Error => return Err(Injected(point)),
                Action::Delay(delay) => return Ok(Some(delay)),
            }
        }
        Ok(None)
    }

    fn parse(text: &str) -> Result<Vec<Armed>, &str> {
        text.split(',').filter(|part| !part.is_empty()).map(|part| armed(part).ok_or(part)).collect()
    }

    fn armed(text: &str) -> Option<Armed> {
        let (point, action) = text.split_once('=')?;
        let (action, time) = action.split_once('@').map_or(Some((action, 0)), |(action, time)| {
            let time = u64::from_str(time).ok().filter(|time| *time > 0)?;
            Some((action, time))
        })?;
        let action = match action.split_once(':') {
            None if action == "kill" => Action::Kill,
            None if action == "error" => Action::Error,
            Some(("delay", ms)) => Action::Delay(Duration::from_millis(ms.parse().ok()?)),
            _ => return None,
        };
        Some(Armed { point: point.to_owned(), action, time, reached: AtomicU64::new(0) })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_point_acts_each_time_or_at_the_one_that_was_named() {
            let plan = parse("a=error@2,b=delay:7").expect("a plan");
            assert_eq!(act(&plan, "a"), Ok(None));
            assert_eq!(act(&plan, "a"), Err(Injected("a")));
            assert_eq!(act(&plan, "a"), Ok(None));
            for _ in 0..2 {
                assert_eq!(act(&plan, "b"), Ok(Some(Duration::from_millis(7))));
            }
            assert_eq!(act(&plan, "c"), Ok(None));
        }

        #[test]
        fn what_is_no_plan_is_named() {
            assert!(parse("").expect("nothing is armed").is_empty());
            for wrong in ["a", "a=die", "a=kill@0", "a=kill@x", "a=delay", "a=delay:x"] {
                assert_eq!(parse(&format!("b=kill,{wrong}")).expect_err("it is none"), wrong);
            }
        }
    }
}
