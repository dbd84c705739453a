//! Invariant 5: two processes share a group. One dies, one sleeps past its session and wakes: no row is written twice or out of order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use harness::World;
use harness::process::Part;
use harness::servers::Role;
use harness::table::Table;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

const SESSION: Duration = Duration::from_secs(6);
/// Within this the other must have gone on.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(6 + 5);
const KEYS: i32 = 200;

/// Every write to the target is remembered there, by a trigger that fires also under the replica role.
const REMEMBER: &str = "
    CREATE TABLE public.written (n bigserial PRIMARY KEY, id int, version bigint, by text);
    CREATE FUNCTION public.remember() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.written (id, version, by) VALUES (NEW.id, NEW.version, current_setting('application_name'));
        RETURN NEW;
    END $$;
    CREATE TRIGGER remember AFTER INSERT OR UPDATE ON public.counters FOR EACH ROW EXECUTE FUNCTION public.remember();
    ALTER TABLE public.counters ENABLE ALWAYS TRIGGER remember;
";

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_writes_nothing_and_the_other_goes_on() {
    let counters = Table::new("public.counters", &["id"], "id int PRIMARY KEY, version bigint NOT NULL");
    let mut world = World::builder().table(counters).start().await;
    world.expect_log("WARN");
    world.in_target(REMEMBER).await;
    world.in_source(&format!("INSERT INTO counters SELECT i, 0 FROM generate_series(1, {KEYS}) i")).await;
    world.configuration.set("groups.rdb.session_timeout_seconds", SESSION.as_secs() as i64);
    let mut source = world.start(Part::Source);
    source.ready(Duration::from_secs(90)).await.expect("the source streams");
    let (mut first, mut second) = (world.start(Part::Sink), world.start(Part::Sink));
    let target = world.target(Role::Superuser).await;
    both_own(&world, &target, [first.id(), second.id()]).await;
    let stop = CancellationToken::new();
    let writer = tokio::spawn(count(world.source(Role::Superuser).await, stop.clone()));

    first.kill9().await.expect("the first is killed");
    goes_on(&world, &target, second.id()).await;
    first.restart().expect("the first comes back");
    both_own(&world, &target, [first.id(), second.id()]).await;

    // Put to sleep with a batch in its hands: its transaction was under way, and it will want to do it again.
    let lock = world.target(Role::Superuser).await;
    lock.batch_execute("BEGIN; LOCK TABLE counters IN SHARE MODE").await.expect("the lock is free");
    every_partition_waits(&world, &target).await;
    second.freeze();
    let cut =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1";
    target.execute(cut, &[&Role::Target.name()]).await.expect("the target cuts the connections");
    lock.batch_execute("COMMIT").await.expect("the lock is let go");
    goes_on(&world, &target, first.id()).await;
    // It wakes and believes that it owns what it has lost.
    second.thaw();
    both_own(&world, &target, [first.id(), second.id()]).await;

    stop.cancel();
    writer.await.expect("the writer does not panic").expect("the writer writes");
    world.until_equal().await;
    written_once_and_in_order(&target).await;
    world.check_topics().await;
    for process in [&mut source, &mut first, &mut second] {
        process.stop().await.expect("it ends");
    }
    world.finish().await;
}

/// Raises the version of rows, all over the partitions.
async fn count(client: Client, stop: CancellationToken) -> Result<(), tokio_postgres::Error> {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    for n in 0.. {
        ticks.tick().await;
        if stop.is_cancelled() {
            break;
        }
        let slice = format!("UPDATE counters SET version = version + 1 WHERE id % 10 = {}", n % 10);
        client.batch_execute(&slice).await?;
    }
    Ok(())
}

/// By partition: who owns it, and the next offset.
async fn progress(target: &Client) -> Result<BTreeMap<i32, (String, i64)>, String> {
    let sql = "SELECT part, coalesce(owner, ''), next_offset FROM tributary.progress ORDER BY part";
    let rows = target.query(sql, &[]).await.map_err(|cause| cause.to_string())?;
    Ok(rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect())
}

/// Every partition has a batch under way that waits for a lock.
async fn every_partition_waits(world: &World, target: &Client) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1 AND wait_event_type = 'Lock'";
    world
        .until("a batch of every partition waits", Duration::from_secs(90), async || {
            let row = target.query_one(sql, &[&Role::Target.name()]).await.map_err(|cause| cause.to_string())?;
            let (waiting, partitions): (i64, usize) = (row.get(0), progress(target).await?.len());
            if waiting >= partitions as i64 { Ok(()) } else { Err(format!("{waiting} of {partitions} wait")) }
        })
        .await;
}

fn is_of(owner: &str, process: u32) -> bool {
    owner.split('@').next() == Some(&process.to_string())
}

async fn both_own(world: &World, target: &Client, processes: [u32; 2]) {
    world
        .until("both processes own partitions", Duration::from_secs(90), async || {
            let found = progress(target).await?;
            let owns = |process: &u32| found.values().any(|(owner, _)| is_of(owner, *process));
            if processes.iter().all(owns) { Ok(()) } else { Err(format!("{found:?} for {processes:?}")) }
        })
        .await;
}

/// The process comes to own all partitions and applies to each of them, within the session timeout and five seconds.
async fn goes_on(world: &World, target: &Client, process: u32) {
    let began = Instant::now();
    let before = progress(target).await.expect("the target answers");
    world
        .until("the other has taken over every partition", TAKEOVER_WITHIN, async || {
            let found = progress(target).await?;
            let moved = |(part, (owner, next)): (&i32, &(String, i64))| {
                is_of(owner, process) && before.get(part).is_none_or(|(_, before)| next > before)
            };
            if found.iter().all(moved) { Ok(()) } else { Err(format!("process {process}: {found:?} after {before:?}")) }
        })
        .await;
    println!("process {process} went on everywhere after {:?}", began.elapsed());
}

/// A version that comes again, or falls, was written by somebody who no longer owned the row.
async fn written_once_and_in_order(target: &Client) {
    let rows = target.query("SELECT id, version FROM written ORDER BY n", &[]).await.expect("the target answers");
    let mut last = BTreeMap::<i32, i64>::new();
    for row in &rows {
        let (id, version): (i32, i64) = (row.get(0), row.get(1));
        if let Some(before) = last.insert(id, version) {
            assert!(version > before, "row {id} was written with version {version} after {before}");
        }
    }
    assert_eq!(last.len(), KEYS as usize, "every row was written");
    assert!(rows.len() > 2 * KEYS as usize, "the writer got to write");
}
