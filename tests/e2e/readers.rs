//! Several readers at work on the same tables: what they share, what a kill costs, and whom they give way to.

use std::collections::HashMap;
use std::time::Duration;

use harness::World;
use harness::oracle::topic;
use harness::process::Part;
use harness::servers::Role;
use harness::table::Table;
use harness::workload::{self, Pace, Workload};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

const READY_WITHIN: Duration = Duration::from_secs(90);
const LOADED_WITHIN: Duration = Duration::from_secs(180);

/// More rows than any chunk holds, under a key of two columns in an order that no byte has.
const ROWS: u32 = 20_000;
const CHUNK_ROWS: usize = 200;
const READERS: usize = 4;

fn names() -> Table {
    // Not every server is built with ICU.
    let collation = "DO $$ BEGIN CREATE COLLATION public.as_read (provider = icu, locale = 'und'); \
                     EXCEPTION WHEN OTHERS THEN CREATE COLLATION public.as_read FROM \"C\"; END $$";
    let columns = "name text COLLATE public.as_read, part integer, value text, PRIMARY KEY (name, part)";
    Table::new("public.names", &["name", "part"], columns).before(collation)
}

/// The order of such names is one thing by their bytes and another by their letters.
fn name(n: u32) -> String {
    let letters = ["a", "B", "é", "Z", "-", "ß"];
    format!("{}{}{:03}", letters[n as usize % 6], letters[n as usize / 6 % 6], n / 36 % 50)
}

async fn fill(world: &World) {
    let client = world.source(Role::Superuser).await;
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(2_000) {
        let rows = chunk.iter().map(|n| format!("('{}', {n}, 'as filled')", name(*n)));
        let insert = format!("INSERT INTO names VALUES {}", rows.collect::<Vec<_>>().join(", "));
        client.batch_execute(&insert).await.expect("the table takes rows");
    }
    client.batch_execute("ANALYZE").await.expect("a superuser may");
}

/// Writes to the large table until told to stop: rows change, go and come.
async fn write(client: tokio_postgres::Client, seed: u64, stop: CancellationToken) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    while stop.run_until_cancelled(pace.tick()).await.is_some() {
        let n = random.random_range(0..ROWS);
        let of = format!("name = '{}' AND part = {n}", name(n));
        let sql = match random.random_range(0..4) {
            0 => format!("DELETE FROM names WHERE {of}"),
            1 => {
                format!("INSERT INTO names VALUES ('{}', {}, 'new')", name(n), ROWS + random.random_range(0..1_000_000))
            }
            _ => format!("UPDATE names SET value = 'changed ' || {} WHERE {of}", random.random::<u32>()),
        };
        match client.batch_execute(&sql).await {
            Err(cause) if cause.code().is_none_or(|code| code.code() != "23505") => panic!("{sql}: {cause}"),
            _ => {}
        }
    }
}

/// How often each key was read by a load, in what `records` show.
fn reads(records: &topic::Records) -> HashMap<&str, usize> {
    let mut reads = HashMap::new();
    for record in records.rows().filter(|record| record.event().is_ok_and(|event| event.op == "r")) {
        *reads.entry(record.key.as_deref().unwrap_or_default()).or_default() += 1;
    }
    reads
}

/// Nothing that was published is read again, whenever the source dies, and no row is lost between two readers.
#[tokio::test(flavor = "multi_thread")]
async fn several_readers_share_a_table_and_a_kill_costs_open_chunks_alone() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).table(names()).start().await;
    world.expect_log("WARN");
    world
        .configuration
        .set("source.chunk_rows_max", CHUNK_ROWS as i64)
        .set("source.snapshot_readers", READERS as i64)
        // The load outlives the kills, and so they meet it.
        .set("source.snapshot_rows_per_second_max", 3_000)
        // Small chunks are read in no time, and one reader would do: each takes long enough for the others to join in.
        .environment("TRIBUTARY_FAILPOINTS", "chunk-read=delay:100");
    let database = world.source(Role::Superuser).await;
    workload::fill(&database, world.seed, &shapes, 500).await.expect("the tables take rows");
    fill(&world).await;
    let pace = Pace { writers: 2, transactions_per_second: 25 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write(world.source(Role::Superuser).await, world.seed, stop.clone()));

    let mut source = world.start(Part::Source);
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    let mut kills = 0;
    for _ in 0..6 {
        source.ready(READY_WITHIN).await.expect("the source streams");
        sleep_until(Instant::now() + Duration::from_millis(random.random_range(100..900))).await;
        source.kill9().await.expect("it is killed");
        kills += 1;
        source.restart().expect("it starts again");
    }
    world
        .until("as many readers as were asked for are at work", READY_WITHIN, async || {
            let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tributary snapshot' AND datname = current_database()";
            let row = database.query_one(count, &[]).await.map_err(|cause| cause.to_string())?;
            let count: i64 = row.get(0);
            if count == READERS as i64 { Ok(()) } else { Err(format!("{count} readers; log:\n{}", source.tail())) }
        })
        .await;
    source.logs("loaded table=public.names", LOADED_WITHIN).await.expect("the large table is loaded");
    stop.cancel();
    writer.await.expect("the writer writes");
    writers.stop().await.expect("the writers write");
    world.until_published().await;

    for table in &world.tables {
        let committed = world.topic(table).await;
        let all =
            topic::read_uncommitted(world.kafka(), &world.topic_name(table)).await.expect("the topic can be read");
        let once = reads(&committed);
        let twice: Vec<_> = once.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "{}: read again although they were published: {twice:?}", table.name);
        let (tried, done) = (reads(&all).values().sum::<usize>(), once.len());
        let most = done + kills * READERS * CHUNK_ROWS;
        assert!(tried <= most, "{}: {tried} rows were sent for {done}, with {kills} kills", table.name);
    }
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// A load gives way to others' work, streaming does not; and connections go when there is nothing to read any more. A table that
/// others hold, or that may not be read, waits for itself alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_waits_while_the_server_has_much_to_do_and_the_stream_goes_on() {
    let held = Table::new("public.held", &["id"], "id int PRIMARY KEY");
    let refused = Table::new("public.refused", &["id"], "id int PRIMARY KEY");
    let mut world = World::builder().table(held).table(refused).table(names()).own_source().start().await;
    world.expect_log("permission denied for table refused");
    world.configuration.set("source.snapshot_active_backends_max", 2);
    fill(&world).await;
    world.in_source(&format!("GRANT pg_monitor TO {}", Role::Source.name())).await;
    let mut busy = Vec::new();
    for _ in 0..3 {
        let client = world.source(Role::Superuser).await;
        busy.push((
            client.cancel_token(),
            tokio::spawn(async move { client.batch_execute("SELECT pg_sleep(600)").await }),
        ));
    }
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("the source streams");
    source.logs("loads wait: 3 sessions are at work", READY_WITHIN).await.expect("it says what it waits for");
    world.in_source("INSERT INTO names VALUES ('streamed', -1, 'meanwhile')").await;
    world
        .until("the change is published", READY_WITHIN, async || {
            let records = world.topic(&names()).await;
            assert!(reads(&records).is_empty(), "rows were read though the server had much to do");
            let found =
                records.rows().any(|record| record.value.as_deref().is_some_and(|value| value.contains("meanwhile")));
            if found { Ok(()) } else { Err(source.tail()) }
        })
        .await;
    let holder = world.source(Role::Superuser).await;
    holder.batch_execute("BEGIN; LOCK TABLE held IN ACCESS EXCLUSIVE MODE").await.expect("nobody reads it");
    let role = Role::Source.name();
    world.in_source(&format!("INSERT INTO refused VALUES (1); REVOKE SELECT ON refused FROM {role}")).await;
    for (cancel, sleeper) in busy {
        cancel.cancel_query(tokio_postgres::NoTls).await.expect("the server takes the cancel");
        sleeper.await.expect("it does not panic").expect_err("its statement was cancelled");
    }
    source.logs("loaded table=public.names", LOADED_WITHIN).await.expect("the load goes on");
    source.logs("permission denied for table refused", READY_WITHIN).await.expect("it says which table waits and why");
    assert!(!source.log().contains("loaded table=public.held"), "it is locked");
    for (table, state, why) in
        [("held", "waiting", "others hold a lock"), ("refused", "failed", "permission denied for table refused")]
    {
        world
            .until("the status says why a table is not loaded", READY_WITHIN, async || {
                let told = world.command(&["snapshot", "status"]).await;
                let line = told.stdout.lines().find(|line| line.starts_with(&format!("public.{table} ")));
                let is_told = line.is_some_and(|line| line.contains(state) && line.contains(why));
                if is_told && told.code == Some(1) { Ok(()) } else { Err(format!("{told:?}")) }
            })
            .await;
    }
    world.in_source(&format!("GRANT SELECT ON refused TO {role}")).await;
    holder.batch_execute("COMMIT").await.expect("it lets go");
    world.until_published().await;
    for table in ["held", "refused"] {
        source.logs(&format!("loaded table=public.{table}"), READY_WITHIN).await.expect("it is read after all");
    }
    let database = world.source(Role::Superuser).await;
    world
        .until("the readers let their connections go", READY_WITHIN, async || {
            let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('tributary snapshot', 'tributary markers')";
            let count: i64 = database.query_one(count, &[]).await.map_err(|cause| cause.to_string())?.get(0);
            if count == 0 { Ok(()) } else { Err(format!("{count} are there still")) }
        })
        .await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}
