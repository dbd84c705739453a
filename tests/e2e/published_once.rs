//! Invariant 2, case by case: what would publish a change twice, or leave it out, and what the source does about it.

mod history;
mod producer;
mod state;
mod topics;

use std::collections::BTreeMap;
use std::time::Duration;

use harness::World;
use harness::oracle::topic::Record;
use harness::process::{Part, Tributary};
use harness::table::Table;

/// How long a source may take to stream, or to see that it must not.
const WITHIN: Duration = Duration::from_secs(180);

fn users() -> Table {
    Table::new("public.users", &["id"], "id bigint PRIMARY KEY, name text")
}

/// A source that streams and has published its first rows.
async fn published(world: &mut World) -> Tributary {
    world.in_source("INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 50) i").await;
    let mut source = world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    world.until_published().await;
    source
}

/// Every record of the topic, by its place.
async fn told(world: &World) -> BTreeMap<(i32, i64), Record> {
    let records = world.topic(&users()).await;
    records.0.into_iter().map(|record| ((record.partition, record.offset), record)).collect()
}

/// The source ends by itself, with an error that says all of `words`.
async fn stops(world: &mut World, source: &mut Tributary, words: &[&str]) {
    let status = source.ends(WITHIN).await.expect("it ends by itself");
    let log = source.log();
    assert!(status.code().is_some_and(|code| code != 0), "it ended with {status}; its log:\n{log}");
    let error = &log[log.rfind("ERROR").expect("it says why")..];
    for word in words {
        assert!(error.contains(word), "the error does not say {word:?}: {error}");
    }
    // The refusal itself is the ERROR that this test is about.
    world.expect_log("ERROR");
}
