//! What the keeper tells while the source runs: metrics, and one line for each change of level.

use std::time::Duration;

use harness::World;
use harness::process::{Part, Tributary};

use super::{READY_WITHIN, users};

async fn metric(source: &Tributary, name: &str) -> Option<f64> {
    let (_, text) = source.http("/metrics").await.ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_told_once_and_shown_in_the_metrics_and_by_status() {
    let mut world = World::builder().table(users()).start().await;
    world.configuration.set("source.alarms.retained_bytes_warning", 1);
    world.expect_log("of WAL for the slot");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    // Some WAL is kept for a slot always, so this alarm never ends.
    let mut seen = Vec::new();
    world
        .until("it was looked at a few times", Duration::from_secs(90), async || {
            let at = metric(&source, "tributary_slot_looked_at_seconds").await.ok_or("no metric yet")?;
            if seen.last() != Some(&at) {
                seen.push(at);
            }
            if seen.len() > 3 { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    assert_eq!(source.log().matches("of WAL for the slot").count(), 1, "{}", source.log());
    assert_eq!(metric(&source, "tributary_slot_alarm_level").await, Some(1.0));
    assert_eq!(metric(&source, "tributary_slot_active").await, Some(1.0));
    assert_eq!(metric(&source, "tributary_slot_lost").await, Some(0.0));
    assert_eq!(metric(&source, r#"tributary_slot_status{status="reserved"}"#).await, Some(1.0));
    for name in ["retained_bytes", "behind_bytes", "behind_seconds"] {
        let value = metric(&source, &format!("tributary_slot_{name}")).await;
        assert!(value.is_some_and(|value| value >= 0.0), "{name}: {value:?}");
    }
    let (_, text) = source.http("/metrics").await.expect("it answers");
    assert!(text.contains("# HELP tributary_slot_retained_bytes "), "{text}");

    let status = world.command(&["status"]).await;
    assert_eq!(status.code, Some(1), "{status:?}");
    assert!(status.stdout.contains("warning") && status.stdout.contains("of WAL for the slot"), "{status:?}");
    source.stop().await.expect("it ends");
    world.finish().await;
}
