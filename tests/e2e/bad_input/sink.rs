//! What the sink finds wrong in the target, and values that the target refuses.

use std::time::Duration;

use harness::World;
use harness::oracle::dead_letters::parked;
use harness::oracle::{tables, topic};
use harness::process::Part;
use harness::servers::Role;
use harness::table::quote;

use super::{refuses, users};

/// A world whose topics exist, so that a sink finds something to read.
async fn world_with_a_row() -> World {
    let mut world = World::builder().table(users()).start().await;
    world.in_source("INSERT INTO users VALUES (1, 'one')").await;
    let mut source = world.start(Part::Source);
    source.ready(super::REFUSAL_WITHIN).await.expect("the source streams");
    world
        .until("the row is published", super::REFUSAL_WITHIN, async || {
            let records =
                topic::read(world.kafka(), &world.topic_name(&users())).await.map_err(|cause| format!("{cause:?}"))?;
            if records.rows().count() == 1 { Ok(()) } else { Err(format!("{} records", records.0.len())) }
        })
        .await;
    source.stop().await.expect("the source ends");
    world
}

#[tokio::test]
async fn a_table_missing_in_the_target_is_told() {
    let mut world = world_with_a_row().await;
    world.in_target("DROP TABLE users").await;
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Sink, configuration, &["public.users", "rdb"]).await;
    world.finish().await;
}

#[tokio::test]
async fn a_column_missing_in_the_target_is_told() {
    let mut world = world_with_a_row().await;
    world.in_target("ALTER TABLE users DROP COLUMN name").await;
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Sink, configuration, &["public.users", "name", "rdb"]).await;
    world.finish().await;
}

#[tokio::test]
async fn a_target_that_lets_us_keep_no_progress_is_told_with_the_statement() {
    let mut world = world_with_a_row().await;
    let (database, role) = (quote(&world.target_database()), Role::Target.name());
    world.in_target(&format!("REVOKE CREATE ON DATABASE {database} FROM {role}")).await;
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Sink, configuration, &["schema tributary", "GRANT CREATE ON DATABASE"]).await;
    let target = world.target(Role::Superuser).await;
    assert_eq!(tables::count(&target, &users()).await, Ok(0), "nothing was applied");
    world.finish().await;
}

/// The event and its key's later ones are set aside and mirrored; all others go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_the_target_refuses_is_set_aside_with_its_keys_later_events() {
    let mut world = World::builder().table(users()).start().await;
    world.in_target("ALTER TABLE users ALTER name TYPE varchar(5)").await;
    world.expect_log("WARN");
    let mut run = world.start(Part::Run);
    run.ready(super::REFUSAL_WITHIN).await.expect("it streams");
    world.in_source("INSERT INTO users SELECT i, 'u' || i FROM generate_series(1, 50) i").await;
    // Step by step: events of a key that meet in one batch come to its last value, and that would be taken.
    world.until_equal().await;
    world.in_source("UPDATE users SET name = 'too long for it' WHERE id = 7").await;
    let target = world.target(Role::Superuser).await;
    let until_parked = async |count: usize| {
        let fine = "SELECT count(*) FROM users WHERE id = 8 AND name = 'fine'";
        let what = format!("{count} events are parked and the other row is applied");
        world
            .until(&what, Duration::from_secs(90), async || {
                let rows = parked(&target).await?;
                let fine: i64 = target.query_one(fine, &[]).await.map_err(|cause| cause.to_string())?.get(0);
                let is_so = rows.len() == count && (count == 1 || fine == 1);
                if is_so { Ok(()) } else { Err(format!("fine: {fine}, parked: {rows:?}")) }
            })
            .await;
    };
    until_parked(1).await;
    world.in_source("UPDATE users SET name = 'short' WHERE id = 7").await;
    world.in_source("UPDATE users SET name = 'fine' WHERE id = 8").await;
    until_parked(2).await;
    let rows = parked(&target).await.expect("the target answers");
    assert!(rows[0].contains("dead") && rows[0].contains("22001"), "{rows:?}");
    let name: String = target.query_one("SELECT name FROM users WHERE id = 7", &[]).await.expect("a row").get(0);
    assert_eq!(name, "u7", "the later event of the key did not overtake");

    let mirror = schemas::topic::of_dead_letters(world.prefix(), "rdb");
    world
        .until("both are mirrored", Duration::from_secs(90), async || {
            let records = topic::read(world.kafka(), &mirror).await.map_err(|cause| format!("{cause:?}"))?;
            if records.0.len() == 2 { Ok(()) } else { Err(format!("{records:?}")) }
        })
        .await;
    let list = world.command(&["dlq", "list"]).await;
    assert_eq!(list.code, Some(1), "something is parked: {list:?}");
    assert!(list.stdout.contains("public.users") && list.stdout.contains("22001"), "{list:?}");
    run.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_the_target_refuses_stops_a_group_that_was_told_to_stop() {
    let mut world = World::builder().table(users()).start().await;
    world.in_target("ALTER TABLE users ADD CHECK (name <> 'bad')").await;
    let mut source = world.start(Part::Source);
    source.ready(super::REFUSAL_WITHIN).await.expect("it streams");
    world.in_source("INSERT INTO users VALUES (1, 'good'), (2, 'bad')").await;
    let mut configuration = world.configuration.clone();
    configuration.set("groups.rdb.on_error", "stop");
    refuses(&mut world, Part::Sink, configuration, &["public.users", "on_error", "park"]).await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}
