//! A database in which nothing is published, in a cluster where others write all the time.

use std::time::{Duration, Instant};

use harness::World;
use harness::oracle::topic;
use harness::process::Part;
use harness::servers::{PostgresAddress, Role};
use harness::table::quote;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::{READY_WITHIN, users};

/// How long the neighbours write, unless `TRIBUTARY_IDLE_SECONDS` says more. From [`BAR_FROM`] on the bar itself is held against it.
const SECONDS: u64 = 20;
/// A run of this length is one for the bar: on a machine that has nothing else to do.
const BAR_FROM: u64 = 300;
/// How old the confirmed LSN may be at any moment of such a run.
const AGE_MAX: Duration = Duration::from_secs(5);
/// How much WAL the slot may hold back.
const RETAINED_MAX: u64 = 32 << 20;
/// What the neighbours write together: about this much WAL a second.
const NEIGHBOUR_BYTES: usize = 1_000_000;
const WRITES_A_SECOND: usize = 10;

/// Writes rows without end: `rows` of about a kilobyte, ten times a second.
fn writer(server: &PostgresAddress, database: &str, table: &'static str, rows: usize) -> JoinHandle<()> {
    let (server, database) = (server.clone(), database.to_owned());
    tokio::spawn(async move {
        let client = server.connect(Role::Superuser, &database).await.expect("the neighbour's database answers");
        let insert = format!("INSERT INTO {table} SELECT repeat('x', 950) FROM generate_series(1, {rows})");
        let mut tick = tokio::time::interval(Duration::from_secs(1) / WRITES_A_SECOND as u32);
        loop {
            tick.tick().await;
            client.batch_execute(&insert).await.expect("the neighbour writes");
        }
    })
}

/// What the server says of our slot at one moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    end: u64,
    confirmed: u64,
    retained: u64,
}

async fn look(client: &Client, slot: &str) -> Look {
    let query = "SELECT (pg_current_wal_lsn() - '0/0')::int8, (confirmed_flush_lsn - '0/0')::int8,
                        (pg_current_wal_lsn() - restart_lsn)::int8 FROM pg_replication_slots WHERE slot_name = $1";
    let row = client.query_one(query, &[&slot]).await.expect("the slot is there");
    let number = |at: usize| row.get::<_, i64>(at).unsigned_abs();
    Look { at: Instant::now(), end: number(0), confirmed: number(1), retained: number(2) }
}

/// How old what is confirmed is: the time since the last look whose end of the WAL it covers.
fn age(looks: &[Look], now: &Look) -> Duration {
    let covered = looks.iter().rev().find(|look| look.end <= now.confirmed);
    now.at.duration_since(covered.unwrap_or(&looks[0]).at)
}

/// Other tables of our database and another database of the cluster write a megabyte a second; what we publish is still.
///
/// Without the idle rule of the source the slot would stay where it is, and the server would keep all of that for us.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_slot_follows_while_neighbours_write() {
    let length = std::env::var("TRIBUTARY_IDLE_SECONDS").ok().and_then(|text| text.parse().ok());
    follow(World::builder().table(users()).own_source().start().await, length.unwrap_or(SECONDS)).await;
}

/// The server says by itself how far it has read. That is enough where nobody may write messages.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_slot_follows_by_keepalives_alone() {
    let mut world = World::builder().table(users()).own_source().start().await;
    world.configuration.set("source.heartbeat_seconds", 0);
    follow(world, SECONDS).await;
}

/// Where nobody writes anything the heartbeat shows that the whole way works: WAL, Kafka, and back to the slot.
#[tokio::test(flavor = "multi_thread")]
async fn the_heartbeat_moves_a_slot_that_nobody_else_moves() {
    let mut world = World::builder().table(users()).own_source().start().await;
    world.configuration.set("source.heartbeat_seconds", 1);
    let client = world.source(Role::Superuser).await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    let mut seen = vec![look(&client, &world.slot()).await.confirmed];
    world
        .until("the slot has moved a few times", Duration::from_secs(90), async || {
            let now = look(&client, &world.slot()).await.confirmed;
            if seen.last() != Some(&now) {
                seen.push(now);
            }
            if seen.len() > 6 { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

async fn follow(mut world: World, length: u64) {
    let (server, database) = (world.source_address().clone(), world.source_database());
    let client = world.source(Role::Superuser).await;
    let neighbour = format!("{}_neighbour", world.prefix());
    client.batch_execute(&format!("CREATE DATABASE {}", quote(&neighbour))).await.expect("a neighbour");
    for database in [&neighbour, &database] {
        let client = server.connect(Role::Superuser, database).await.expect("the database answers");
        client.batch_execute("CREATE TABLE public.other (x text)").await.expect("a table");
    }
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    let rows = NEIGHBOUR_BYTES / 1000 / WRITES_A_SECOND;
    let mut writers =
        vec![writer(&server, &neighbour, "public.other", rows - 5), writer(&server, &database, "public.other", 5)];

    let began = look(&client, &world.slot()).await;
    let (mut looks, mut oldest, mut most) = (vec![began], Duration::ZERO, 0);
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    while began.at.elapsed() < Duration::from_secs(length) {
        tick.tick().await;
        let now = look(&client, &world.slot()).await;
        (oldest, most) = (oldest.max(age(&looks, &now)), most.max(now.retained));
        looks.push(now);
    }
    for writer in writers.drain(..) {
        writer.abort();
    }
    let last = looks[looks.len() - 1];
    let rate = (last.end - began.end) as f64 / began.at.elapsed().as_secs_f64() / 1e6;
    println!(
        "{length} s, {rate:.2} MB/s of WAL: the confirmed LSN was at most {:.1} s old, at most {:.1} MB were held back",
        oldest.as_secs_f64(),
        most as f64 / 1e6
    );
    if length >= BAR_FROM {
        assert!(oldest < AGE_MAX, "the confirmed LSN was {oldest:?} old");
        assert!(most < RETAINED_MAX, "{most} bytes were held back");
    }
    world
        .until("everything that was written is confirmed", Duration::from_secs(60), async || {
            let now = look(&client, &world.slot()).await;
            if now.confirmed >= last.end { Ok(()) } else { Err(format!("{now:?}, awaited {last:?}")) }
        })
        .await;
    let state =
        topic::read(world.kafka(), &schemas::topic::of_state(world.prefix())).await.expect("the state can be read");
    let records = state.0.iter().filter(|record| record.key.as_deref() == Some("stream")).count();
    let seconds = usize::try_from(began.at.elapsed().as_secs()).expect("it did not last that long");
    println!("{records} state records in {seconds} s");
    // One a second at most while nothing of ours is written, and one for each beat.
    assert!(records <= seconds + seconds / 10 + 5, "{records} state records in {seconds} s");
    source.stop().await.expect("it ends");
    world.finish().await;
}
