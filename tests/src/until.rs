//! Waiting for a condition, with a deadline and the last thing seen. The only place in the harness that sleeps.

use std::time::{Duration, Instant};

use crate::Error;

/// Asks again and again until `check` has a value. While it has none it says how things stand, and the last of that ends in the error.
pub async fn until<T, F>(what: &str, within: Duration, mut check: F) -> Result<T, Error>
where
    F: AsyncFnMut() -> Result<T, String>,
{
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_millis(5);
    let mut state = "nothing".to_owned();
    loop {
        // A check that hangs (a server stopped by a signal) must not outlast the deadline either.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let asked = Instant::now();
        match tokio::time::timeout(left, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => state = seen,
            Err(_) => state.push_str(" (and the last check was not done in time)"),
        }
        if Instant::now() >= deadline {
            return Err(Error::new(format!("not within {within:?}: {what}; last seen: {state}")));
        }
        // A check that costs much is made less often: it takes the time of what it waits for.
        tokio::time::sleep(pause.max(asked.elapsed()).min(Duration::from_secs(2))).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
