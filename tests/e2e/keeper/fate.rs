//! What becomes of slots: lost, made again, another's. The source stops with the remedy, and never goes on past a gap.

use std::time::Duration;

use harness::World;
use harness::process::{Part, Tributary};
use harness::servers::Role;
use harness::table::quote;

use super::{READY_WITHIN, json, users, write_segments};

const REFUSAL_WITHIN: Duration = Duration::from_secs(90);

/// A source that has published a row and streams.
async fn streaming(world: &mut World) -> Tributary {
    world.in_source("INSERT INTO users VALUES (1, 'one')").await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    source
}

/// It ends by itself, and its log says all of `words`.
async fn ends_saying(world: &mut World, source: &mut Tributary, words: &[&str]) {
    world.expect_log("ERROR");
    let status = source.ends(REFUSAL_WITHIN).await.expect("it ends by itself");
    let log = source.log();
    assert!(status.code().is_some_and(|code| code != 0), "it ended with {status}; its log:\n{log}");
    for word in words {
        assert!(log.contains(word), "its log does not say {word:?}:\n{log}");
    }
}

/// The server takes the WAL of a slot whose reader sleeps. Woken up, the reader stops; so does one that starts later.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_lost_its_wal_stops_the_source_and_is_told_by_every_command() {
    let mut world = World::builder().table(users()).own_source().start().await;
    let server = world.own_source.as_mut().expect("the test has its own");
    server.set("max_slot_wal_keep_size", "16MB");
    server.set("wal_sender_timeout", "0");
    server.restart().await.expect("the source comes back");
    let mut source = streaming(&mut world).await;
    let client = world.source(Role::Superuser).await;
    let slot = world.slot();
    source.freeze();
    world
        .until("the slot is lost", Duration::from_secs(60), async || {
            write_segments(&world, 4).await;
            let query = "SELECT coalesce(wal_status, '') FROM pg_replication_slots WHERE slot_name = $1";
            let row = client.query_one(query, &[&slot]).await.map_err(|cause| cause.to_string())?;
            let status: String = row.get(0);
            if status == "lost" { Ok(()) } else { Err(status) }
        })
        .await;
    source.thaw();
    world.expect_log("WARN");
    let words = ["is lost", "max_slot_wal_keep_size", "slot drop", "new prefix"];
    ends_saying(&mut world, &mut source, &words).await;

    let mut again = world.start(Part::Source);
    ends_saying(&mut world, &mut again, &words).await;
    for command in [&["status"] as &[&str], &["slot", "show"], &["doctor"]] {
        let told = world.command(command).await;
        assert_eq!(told.code, Some(1), "{told:?}");
        assert!(told.stdout.contains("is lost") && told.stdout.contains("max_slot_wal_keep_size"), "{told:?}");
    }
    let shown = world.command(&["slot", "show", "--json"]).await;
    let shown = json(&shown);
    assert_eq!(shown["slot"]["wal_status"], "lost", "{shown}");
    assert_eq!(shown["slot"]["level"], "critical", "{shown}");

    let dropped = world.command(&["slot", "drop", "--yes"]).await;
    assert_eq!(dropped.code, Some(0), "{dropped:?}");
    let gone = world.command(&["status"]).await;
    assert_eq!(gone.code, Some(1), "{gone:?}");
    assert!(gone.stdout.contains("is gone"), "{gone:?}");
    let mut last = world.start(Part::Source);
    ends_saying(&mut world, &mut last, &["is gone", "new prefix"]).await;
    world.finish().await;
}

/// A slot of the same name that was made later has never seen what was written before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_was_made_again_by_hand_stops_the_source() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = streaming(&mut world).await;
    let client = world.source(Role::Superuser).await;
    let slot = world.slot();
    // While it runs: asleep, it cannot take the slot back at once.
    source.freeze();
    client
        .execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1", &[&slot])
        .await
        .expect("its walsender ends");
    world
        .until("the slot can be dropped", Duration::from_secs(30), async || {
            let dropped = client.execute("SELECT pg_drop_replication_slot($1)", &[&slot]).await;
            dropped.map(|_| ()).map_err(|cause| format!("{:?}", cause.as_db_error()))
        })
        .await;
    world.in_source("INSERT INTO users VALUES (2, 'never decoded')").await;
    world.in_source(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
    source.thaw();
    world.expect_log("WARN");
    ends_saying(&mut world, &mut source, &["made again", "new prefix"]).await;
    // And when it starts anew, whatever happens meanwhile.
    let mut anew = world.start(Part::Source);
    ends_saying(&mut world, &mut anew, &["made again", "new prefix"]).await;
    world.finish().await;
}

/// A first start drops no slot that is another's, and one that published goes on from none.
#[tokio::test(flavor = "multi_thread")]
async fn another_s_slot_of_our_name_is_refused_and_left_alone() {
    let mut world = World::builder().table(users()).start().await;
    let client = world.source(Role::Superuser).await;
    let other = world.source_address().connect(Role::Superuser, "postgres").await.expect("the source answers");
    let slot = world.slot();
    let drop = format!("SELECT pg_drop_replication_slot('{slot}')");
    let physical = format!("SELECT pg_create_physical_replication_slot('{slot}')");
    let kinds = [
        (&client, physical.clone(), "physical"),
        (&client, format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"), "test_decoding"),
        (&other, format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"), "database postgres"),
        (&client, format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', true)"), "temporary"),
    ];
    for (maker, make, word) in kinds {
        if let Err(cause) = maker.batch_execute(&make).await {
            // Servers without contrib have no other plugin.
            assert_eq!(word, "test_decoding", "{cause}");
            continue;
        }
        let mut source = world.start(Part::Source);
        ends_saying(&mut world, &mut source, &["is not ours", word, "source.slot"]).await;
        let doctor = world.command(&["doctor"]).await;
        assert_eq!(doctor.code, Some(1), "{doctor:?}");
        assert!(doctor.stdout.contains(word), "{doctor:?}");
        let refused = world.command(&["slot", "drop", "--yes"]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        maker.batch_execute(&drop).await.expect("it was left alone");
    }
    let mut source = streaming(&mut world).await;
    source.stop().await.expect("it ends");
    client.batch_execute(&format!("{drop}; {physical}")).await.expect("another's takes its place");
    source.restart().expect("it starts again");
    ends_saying(&mut world, &mut source, &["not the one that was published from", "physical", "new prefix"]).await;
    client.batch_execute(&drop).await.expect("it was left alone");
    world.finish().await;
}

/// Nothing may hide that somebody else read from the slot.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_ahead_of_the_topics_stops_the_source() {
    let mut world = World::builder().table(users()).start().await;
    let mut source = streaming(&mut world).await;
    source.stop().await.expect("it ends");
    world.in_source("INSERT INTO users VALUES (2, 'read by another')").await;
    let (slot, publication) = (world.slot(), quote(&world.slot()));
    let read = format!(
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, \
         'proto_version', '1', 'publication_names', '{publication}')"
    );
    world.in_source(&read).await;
    source.restart().expect("it starts again");
    ends_saying(&mut world, &mut source, &["somebody else read from it", "new prefix"]).await;
    world.finish().await;
}
