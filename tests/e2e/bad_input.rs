//! What is wrong is said at once, with the remedy, and before anything is touched.

mod configuration;
mod kafka;
mod sink;
mod source;

use std::time::Duration;

use harness::World;
use harness::configuration::Configuration;
use harness::process::Part;
use harness::servers::Role;
use harness::table::Table;

/// How long a process may take to see that it cannot start.
const REFUSAL_WITHIN: Duration = Duration::from_secs(90);

fn users() -> Table {
    Table::new("public.users", &["id"], "id bigint PRIMARY KEY, name text")
}

/// The part ends by itself with an error that says all of `words`.
pub async fn refuses(world: &mut World, part: Part, configuration: Configuration, words: &[&str]) {
    let mut process = world.start_with(part, configuration);
    let status = process.ends(REFUSAL_WITHIN).await.expect("it ends by itself");
    let log = process.log();
    assert!(status.code().is_some_and(|code| code != 0), "it ended with {status}; its log:\n{log}");
    for word in words {
        assert!(log.contains(word), "the error does not say {word:?}; the log:\n{log}");
    }
    // The refusal itself is the ERROR that this test is about.
    world.expect_log("ERROR");
}

/// Neither a slot, nor a topic, nor our schema in the target.
async fn nothing_is_touched(world: &World) {
    let source = world.source(Role::Superuser).await;
    let slots =
        source.query_one("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()", &[]).await;
    assert_eq!(slots.expect("the source answers").get::<_, i64>(0), 0, "a slot was made");
    for table in &world.tables {
        let topic = world.topic_name(table);
        let exists = harness::oracle::topic::exists(world.kafka(), &topic).await.expect("Kafka answers");
        assert!(!exists, "the topic {topic} was made");
    }
    let target = world.target(Role::Superuser).await;
    let schema = target.query_one("SELECT count(*) FROM pg_namespace WHERE nspname = 'tributary'", &[]).await;
    assert_eq!(schema.expect("the target answers").get::<_, i64>(0), 0, "the schema tributary was made");
}
