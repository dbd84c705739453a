//! What becomes of rows that a target holds already when the first load comes, and truncates on the way.

use harness::oracle::tables;

use super::*;

fn accounts() -> Table {
    Table::new("public.accounts", &["id"], "id int PRIMARY KEY, owner text")
}

/// Both sides have rows: some of the same keys, some that only the target has.
async fn world(mode: &str) -> World {
    let mut world = World::builder().table(accounts()).start().await;
    world.configuration.set("source.snapshot_mode", mode).set("source.chunk_rows_max", 50);
    world.in_source("INSERT INTO accounts SELECT i, 'source' FROM generate_series(1, 500) i").await;
    world.in_target("INSERT INTO accounts SELECT i, 'stale' FROM generate_series(400, 700) i").await;
    world
}

/// Nobody stands at a truncate any more, nor waits.
async fn check_no_holds(world: &World) {
    let target = world.target(Role::Superuser).await;
    let query = "SELECT (SELECT count(*) FROM tributary.hold) + (SELECT count(*) FROM tributary.arrival)";
    let left: i64 = target.query_one(query, &[]).await.expect("the target answers").get(0);
    assert_eq!(left, 0, "holds or arrivals are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_load_refuses_a_target_with_rows_and_names_the_ways() {
    let mut world = world("refuse").await;
    world.expect_log("ERROR");
    world.expect_log("WARN");
    let mut run = world.start(Part::Run);
    run.ends(WITHIN).await.expect("it ends by itself");
    for words in ["begins the first load of public.accounts", "TRUNCATE", "source.snapshot_mode = \"replace\""] {
        assert!(run.log().contains(words), "{words:?} is not in:\n{}", run.tail());
    }
    world.finish().await;
}

/// The same for a table that joins later: its first load is no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_added_is_refused_with_rows_in_its_target() {
    let others = Table::new("public.others", &["id"], "id int PRIMARY KEY");
    let mut world = World::builder().table(accounts()).table(others).start().await;
    world.expect_log("ERROR");
    world.expect_log("WARN");
    world.in_target("INSERT INTO accounts VALUES (1, 'of the target alone')").await;
    world.configuration.set("source.tables", vec!["public.others"]);
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    run.stop().await.expect("it ends");
    world.configuration.set("source.tables", vec!["public.others", "public.accounts"]);
    run.restart_with(world.configuration.clone()).expect("it starts again");
    run.ends(WITHIN).await.expect("it ends by itself");
    let words = "begins the first load of public.accounts";
    assert!(run.log().contains(words), "{words:?} is not in:\n{}", run.tail());
    world.finish().await;
}

/// Two processes share the partitions, so the truncate of the load's own is met by both. Others come from the application,
/// with rows before and behind them in one transaction; one of the sinks dies now and then.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_takes_the_place_of_what_the_target_holds() {
    let mut world = world("replace").await;
    world.expect_log("WARN");
    world.configuration.set("groups.rdb.session_timeout_seconds", 6);
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    let mut sinks = [world.start(Part::Sink), world.start(Part::Sink)];
    world.until_equal().await;
    world.check_nothing_parked(&["rdb"]).await;
    check_no_holds(&world).await;
    for round in 0..6 {
        world
            .in_source(&format!(
                "BEGIN; INSERT INTO accounts SELECT {round} * 1000 + i, 'lost' FROM generate_series(2000, 2100) i; TRUNCATE accounts;
                 INSERT INTO accounts SELECT i, 'round {round}' FROM generate_series(1, 300) i; COMMIT;
                 UPDATE accounts SET owner = 'after' WHERE id % 3 = 0"
            ))
            .await;
        if round % 2 == 0 {
            let sink = &mut sinks[round / 2 % 2];
            sink.kill9().await.expect("it is killed");
            sink.restart().expect("it starts again");
        }
    }
    world.until_equal().await;
    world.check_topics().await;
    world.check_nothing_parked(&["rdb"]).await;
    check_no_holds(&world).await;
    source.stop().await.expect("it ends");
    for sink in &mut sinks {
        sink.stop().await.expect("it ends");
    }
    world.finish().await;
}

/// A table that others refer to cannot be truncated alone, and a role without the right cannot at all: its rows are deleted.
#[tokio::test(flavor = "multi_thread")]
async fn where_a_truncate_is_not_to_be_had_rows_are_deleted() {
    let mut world = world("replace").await;
    world
        .in_target(&format!(
            "CREATE TABLE referring (id int REFERENCES accounts DEFERRABLE); REVOKE TRUNCATE ON accounts FROM {}",
            Role::Target.name()
        ))
        .await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    check_no_holds(&world).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_leaves_what_it_does_not_bring() {
    let mut world = world("merge").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    let (source, target) = (world.source(Role::Superuser).await, world.target(Role::Superuser).await);
    let stale = "SELECT count(*), min(id), max(id) FROM accounts WHERE owner = 'stale'";
    world
        .until("the rest of what the target held stands beside the source's rows", WITHIN, async || {
            let row = target.query_one(stale, &[]).await.map_err(|cause| cause.to_string())?;
            let found: (i64, Option<i32>, Option<i32>) = (row.get(0), row.get(1), row.get(2));
            let all = tables::count(&target, &accounts()).await?;
            if (found, all) == ((200, Some(501), Some(700)), 700) { Ok(()) } else { Err(format!("{found:?}, {all}")) }
        })
        .await;
    assert_eq!(tables::count(&source, &accounts()).await, Ok(500));
    world.check_topics().await;
    run.stop().await.expect("it ends");
    world.finish().await;
}
