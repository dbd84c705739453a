//! The server's side: a data directory restored from an older copy, and a slot that somebody else has moved.

use std::time::Duration;

use harness::World;
use harness::servers::Role;

use super::{published, stops, told, users};

/// The restored server has the same system id and timeline as the one that we knew. First it lacks what was published; then
/// it writes on, and has other changes at the same places.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_restored_from_an_older_copy_stops_the_source() {
    let mut world = World::builder().table(users()).own_source().start().await;
    world.expect_log("WARN");
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let mut server = world.own_source.take().expect("the test has its own");
    server.stop().await.expect("it stops");
    server.save().expect("its data is copied");
    server.restart().await.expect("it comes back");
    source.restart().expect("it starts again");
    world.in_source("UPDATE users SET name = name || ' once'").await;
    world.until_published().await;
    let before = told(&world).await;
    source.kill9().await.expect("it is killed");
    server.stop().await.expect("it stops");
    server.restore().expect("the older data is put back");
    server.restart().await.expect("it comes back");

    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &["restored from an older state", "under a new prefix"]).await;
    // Now its WAL goes on beyond what was published.
    let switch = "UPDATE users SET name = name || ' anew'; SELECT pg_switch_wal(); UPDATE users SET name = name || '!'";
    for statement in switch.split(';') {
        world.in_source(statement).await;
    }
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &["another history", "under a new prefix"]).await;
    assert_eq!(told(&world).await, before, "nothing of the other history was published");
    world.own_source = Some(server);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_somebody_else_has_moved_on_stops_the_source() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let before = told(&world).await;
    world.in_source("UPDATE users SET name = name || '!'").await;
    moved_on(&world).await;
    source.restart().expect("it starts again");
    let slot = world.slot();
    stops(&mut world, &mut source, &[&slot, "somebody else read from it", "under a new prefix"]).await;
    assert_eq!(told(&world).await, before, "nothing was published");
    world.finish().await;
}

/// Dropped and made again it looks like ours, and what lies between is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_was_dropped_and_made_again_stops_the_source() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = published(&mut world).await;
    source.stop().await.expect("the source ends");
    let before = told(&world).await;
    let slot = world.slot();
    world.in_source(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    world.in_source("UPDATE users SET name = name || '!'").await;
    world.in_source(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &[&slot, "under a new prefix"]).await;
    assert_eq!(told(&world).await, before, "nothing was published");
    world.finish().await;
}

/// The server lets a slot be moved only once its reader is gone.
async fn moved_on(world: &World) {
    let client = world.source(Role::Superuser).await;
    let sql = "SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())";
    world
        .until("the slot is moved on", Duration::from_secs(20), async || {
            client.execute(sql, &[&world.slot()]).await.map(drop).map_err(|cause| format!("{cause:?}"))
        })
        .await;
}
