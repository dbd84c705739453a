//! What the source finds wrong on the server, in the tables and in the publication.

use std::time::Duration;

use harness::World;
use harness::process::Part;
use harness::servers::Role;
use harness::table::{Table, quote};

use super::{REFUSAL_WITHIN, nothing_is_touched, refuses, users};

#[tokio::test]
async fn a_server_without_logical_wal_is_told() {
    let mut world = World::builder().table(users()).own_source().start().await;
    let server = world.own_source.as_mut().expect("the test has its own");
    server.set("wal_level", "replica");
    server.restart().await.expect("the source comes back");
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Source, configuration, &["wal_level is replica", "ALTER SYSTEM SET wal_level"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_server_without_a_free_slot_is_told() {
    let mut world = World::builder().table(users()).own_source().start().await;
    let server = world.own_source.as_mut().expect("the test has its own");
    server.set("max_replication_slots", "1");
    server.restart().await.expect("the source comes back");
    let source = world.source_address().connect(Role::Superuser, "postgres").await.expect("the source answers");
    let take = "SELECT pg_create_physical_replication_slot('taken')";
    source.batch_execute(take).await.expect("there is one slot");
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Source, configuration, &["no replication slot is free", "max_replication_slots"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

/// A standby instance is possible: it waits, names who holds the slot, and takes over.
#[tokio::test]
async fn a_slot_in_use_is_waited_for_and_its_reader_named() {
    let mut world = World::builder().table(users()).start().await;
    world.in_source("INSERT INTO users VALUES (1, 'one')").await;
    world.expect_log("in use");
    let mut first = world.start(Part::Source);
    first.ready(REFUSAL_WITHIN).await.expect("the first streams");
    let source = world.source(Role::Superuser).await;
    let reader = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    let reader = source.query_one(reader, &[&world.slot()]).await.expect("the slot is there").get::<_, i32>(0);

    let mut second = world.start(Part::Source);
    second.logs(&reader.to_string(), REFUSAL_WITHIN).await.expect("the second names the reader");
    assert!(second.ended().is_none(), "the second waits");
    first.stop().await.expect("the first ends");
    second.ready(Duration::from_secs(90)).await.expect("the second streams");
    world.in_source("INSERT INTO users VALUES (2, 'two')").await;
    world.until_published().await;
    second.stop().await.expect("the second ends");
    world.finish().await;
}

#[tokio::test]
async fn a_table_without_a_key_is_told() {
    let keyless = Table::new("public.keyless", &["a"], "a int, b text");
    let mut world = World::builder().table(users()).table(keyless).start().await;
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Source, configuration, &["public.keyless", "REPLICA IDENTITY"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_table_missing_in_the_source_is_told() {
    let mut world = World::builder().table(users()).start().await;
    let mut configuration = world.configuration.clone();
    configuration.set("source.tables", vec!["public.users", "public.Users"]);
    refuses(&mut world, Part::Source, configuration, &["public.Users", "does not exist"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_publication_that_misses_a_table_is_told_with_the_statement() {
    let orders = Table::new("public.orders", &["id"], "id int PRIMARY KEY");
    let mut world = World::builder().table(users()).table(orders).start().await;
    world.in_source(&format!("ALTER PUBLICATION {} DROP TABLE public.orders", quote(&world.slot()))).await;
    let mut configuration = world.configuration.clone();
    configuration.set("source.create", false);
    let words = ["lacks public.orders", "ALTER PUBLICATION", "ADD TABLE", "pg_create_logical_replication_slot"];
    refuses(&mut world, Part::Source, configuration, &words).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_missing_publication_is_told_with_the_statement() {
    let mut world = World::builder().table(users()).without_publication().start().await;
    let mut configuration = world.configuration.clone();
    configuration.set("source.create", false);
    refuses(&mut world, Part::Source, configuration, &["publication", "is missing", "CREATE PUBLICATION"]).await;
    nothing_is_touched(&world).await;
    world.finish().await;
}

/// The other way round: told to, the source makes publication and slot itself, with nothing but the ownership of the tables.
#[tokio::test]
async fn publication_and_slot_are_made_when_the_configuration_says_so() {
    let mut world = World::builder().table(users()).without_publication().start().await;
    let (owner, database) = (Role::Source.name(), quote(&world.source_database()));
    world
        .in_source(&format!("ALTER TABLE users OWNER TO {owner}; GRANT CREATE ON DATABASE {database} TO {owner}"))
        .await;
    world.in_source("INSERT INTO users VALUES (1, 'one')").await;
    let mut source = world.start(Part::Source);
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}
