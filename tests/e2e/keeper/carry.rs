//! What is not carried, or only at a price, is said before somebody misses it.

use harness::World;
use harness::table::Table;

use super::json;

#[tokio::test]
async fn doctor_says_what_is_not_carried() {
    let full = Table::new("public.full_rows", &["id"], "id int PRIMARY KEY, name text")
        .after("ALTER TABLE {table} REPLICA IDENTITY FULL");
    let sums = Table::new("public.sums", &["id"], "id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED");
    // The harness closes the parenthesis.
    let parts = Table::new("public.parts", &["id"], "id int PRIMARY KEY) PARTITION BY RANGE (id")
        .after("CREATE TABLE public.parts_1 PARTITION OF {table} FOR VALUES FROM (0) TO (100)");
    let world = World::builder().tables([full, sums, parts]).start().await;
    let nothing = world.command(&["doctor", "--json"]).await;
    assert!(!json(&nothing).to_string().contains("public.unlogged"), "{nothing:?}");
    world
        .in_source(
            "SELECT lo_create(0);
             CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
             CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere;
             CREATE FOREIGN TABLE elsewhere (id int) SERVER nowhere;
             CREATE TABLE keyless (a int);
             CREATE SEQUENCE numbers;
             CREATE VIEW looked_at AS SELECT 1 AS one;
             CREATE SCHEMA beside; CREATE UNLOGGED TABLE beside.not_concerned (id int PRIMARY KEY)",
        )
        .await;
    let told = world.command(&["doctor", "--json"]).await;
    let checks = json(&told)["checks"].as_array().expect("a list").clone();
    for (what, grade, found) in [
        ("large objects", "warning", "not carried"),
        ("unlogged tables", "warning", "public.unlogged"),
        ("foreign tables", "warning", "public.elsewhere"),
        ("tables without a key", "warning", "public.keyless"),
        ("sequences", "warning", "public.numbers"),
        ("views", "good", "public.looked_at"),
        ("table public.full_rows, identity", "warning", "REPLICA IDENTITY FULL"),
        ("table public.sums, generated columns", "warning", "twice"),
        ("table public.parts, partitions", "fault", "leaf by leaf"),
        ("wal_sender_timeout", "good", "60 s"),
    ] {
        let check = checks.iter().find(|check| check["part"] == "source" && check["what"] == what);
        let check = check.unwrap_or_else(|| panic!("nothing of {what:?} in {told:?}"));
        assert_eq!(check["grade"], grade, "{check}");
        assert!(check["found"].as_str().is_some_and(|text| text.contains(found)), "{check}");
    }
    assert!(!told.stdout.contains("not_concerned"), "{told:?}");
    world.finish().await;
}
