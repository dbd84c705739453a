//! A standby is promoted: the source goes on at the new primary by itself, exactly, or stops and says what is missing.
//!
//! On PostgreSQL 18, whichever one is under test: failover slots came with 17, and 18 is the one whose builds have all that a standby needs.

use std::time::Duration;

use harness::World;
use harness::oracle::audit;
use harness::process::{Part, Tributary};
use harness::servers::{Postgres, Role};
use harness::workload::{self, Pace, Workload};

const MAJOR: u32 = 18;
const WITHIN: Duration = Duration::from_secs(120);
const PACE: Pace = Pace { writers: 3, transactions_per_second: 40 };

/// A primary, its standby, and a source that knows both.
struct Pair {
    world: World,
    primary: Postgres,
    standby: Postgres,
}

impl Pair {
    /// `sync`: the standby takes logical slots along.
    async fn start(sync: bool) -> Pair {
        let shapes = workload::all();
        let mut world = World::builder().tables(workload::tables()).own_source_major(MAJOR).start().await;
        world.expect_log("WARN");
        workload::fill(&world.source(Role::Superuser).await, world.seed, &shapes, 200).await.expect("tables take rows");
        let primary = world.own_source.take().expect("the test has its own");
        let settings: &[(&str, &str)] = if sync { &[("sync_replication_slots", "on")] } else { &[] };
        let standby = primary.standby("standby", settings).await.expect("a standby follows");
        // The primary is looked for: once it is the first of the hosts, once it stands behind its standby.
        let ports = (primary.address().port, standby.address().port);
        let (first, second) = if sync { ports } else { (ports.1, ports.0) };
        let url = format!(
            "postgresql://{}@127.0.0.1:{first},127.0.0.1:{second}/{}?sslmode=disable",
            Role::Source.name(),
            world.source_database()
        );
        world.configuration.set("source.url", url).set("source.failover", sync);
        Pair { world, primary, standby }
    }

    /// From now on nothing is published that the standby lacks.
    async fn hold_back(&self) {
        self.world.in_source("ALTER SYSTEM SET synchronized_standby_slots = 'standby'").await;
        self.world.in_source("SELECT pg_reload_conf()").await;
    }

    /// Writes as much, and lets it be published.
    async fn write(&self, seed: u64, transactions: u64) {
        let (server, database) = (self.world.source_address(), self.world.source_database());
        let writers = Workload::start(server, &database, seed, PACE, &workload::all());
        writers.after(transactions).await.expect("the writers write");
    }

    /// The source's slot is ready at the standby. While it waits somebody writes, since only a slot that moves gets there.
    async fn until_synced(&self) {
        let (server, database) = (self.world.source_address(), self.world.source_database());
        let writers = Workload::start(server, &database, self.world.seed.wrapping_add(7), PACE, &workload::all());
        let synced = self.standby.until_synced(&self.world.slot()).await;
        writers.stop().await.expect("the writers write");
        synced.expect("the slot is taken along");
    }

    /// The primary dies under load, the standby takes its place.
    async fn fail_over(&mut self) {
        self.primary.kill9().await.expect("the primary is killed");
        self.standby.promote().await.expect("the standby is promoted");
        self.world.source_moves_to(self.standby.address());
    }
}

/// The source ends by itself with an error that says all of `words`.
async fn refuses(world: &mut World, source: &mut Tributary, words: &[&str]) {
    let status = source.ends(WITHIN).await.expect("it ends by itself");
    let log = source.log();
    assert!(!status.success(), "it ended with {status}; its log:\n{log}");
    for word in words {
        assert!(log.contains(word), "the error does not say {word:?}; the log:\n{log}");
    }
    world.expect_log("ERROR");
}

/// Under write load, by itself, and exactly what the new primary has. The old one is refused when it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn the_source_follows_a_promotion_and_refuses_the_old_primary() {
    let mut pair = Pair::start(true).await;
    pair.hold_back().await;
    let audit = format!("{}_audit", pair.world.prefix());
    let client = pair.world.source(Role::Superuser).await;
    audit::start_with(&client, &pair.standby, &audit).await.expect("a slot for the audit");
    let mut source = pair.world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    pair.until_synced().await;

    let (server, database) = (pair.world.source_address().clone(), pair.world.source_database());
    let writers = Workload::start(&server, &database, pair.world.seed, PACE, &workload::all());
    pair.world
        .until("the writers have written", WITHIN, async || {
            let client = pair.world.source(Role::Superuser).await;
            let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
            let commits: i64 = client.query_one(commits, &[]).await.map_err(|cause| cause.to_string())?.get(0);
            if commits > 500 { Ok(()) } else { Err(format!("{commits} commits")) }
        })
        .await;
    pair.fail_over().await;
    writers.stop().await.expect_err("their server is gone");
    source.ready(WITHIN).await.expect("the source streams from the new primary");
    pair.write(pair.world.seed.wrapping_add(1), 300).await;
    pair.world.until_published().await;
    pair.world.until_audit_agrees(&audit).await;
    source.stop().await.expect("it ends");
    assert!(source.log().contains(&format!("127.0.0.1:{}", pair.standby.address().port)), "it names its server");

    pair.primary.restart().await.expect("the old primary comes back");
    source.restart().expect("the source starts again");
    let words = ["writes timeline 1, which did not come out of timeline 2", "take it out of source.url"];
    refuses(&mut pair.world, &mut source, &words).await;
    pair.primary.stop().await.expect("the old primary ends");
    source.restart().expect("the source starts again");
    source.ready(WITHIN).await.expect("without the old primary it goes on");
    source.stop().await.expect("it ends");
    pair.world.finish().await;
}

/// Without synchronized_standby_slots Kafka may get what the new primary never had: that is not gone on from, but listed.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_new_primary_never_had_stops_the_source() {
    let mut pair = Pair::start(true).await;
    let mut source = pair.world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    pair.until_synced().await;
    pair.standby.stop().await.expect("the standby is away");
    pair.write(pair.world.seed, 20).await;
    pair.world.until_published().await;
    pair.primary.kill9().await.expect("the primary is killed");
    pair.standby.restart().await.expect("the standby comes back");
    pair.standby.promote().await.expect("the standby is promoted");
    pair.world.source_moves_to(pair.standby.address());
    let words = ["timeline 2 of the server branched off at", "never had", "txId", "synchronized_standby_slots"];
    refuses(&mut pair.world, &mut source, &words).await;
    pair.world.finish().await;
}

/// A standby that takes no slots along cannot be gone on from.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_was_left_behind_stops_the_source() {
    let mut pair = Pair::start(false).await;
    let mut source = pair.world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    pair.world.until_published().await;
    pair.fail_over().await;
    let slot = pair.world.slot();
    let words = [&format!("has no slot {slot}"), "timeline 2", "sync_replication_slots = on", "source.failover = true"];
    refuses(&mut pair.world, &mut source, &words).await;
    pair.world.finish().await;
}

/// A slot that is there already is made one that standbys take along, when the configuration asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_becomes_one_that_standbys_take_along() {
    let mut world = World::builder().tables(workload::tables()).own_source_major(MAJOR).start().await;
    let mut source = world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    source.stop().await.expect("it ends");
    world.expect_log("synchronized_standby_slots");
    world.configuration.set("source.failover", true);
    let mut source = world.start(Part::Source);
    source.ready(WITHIN).await.expect("the source streams");
    let client = world.source(Role::Superuser).await;
    let failover = "SELECT failover FROM pg_replication_slots WHERE slot_name = $1";
    let failover = client.query_one(failover, &[&world.slot()]).await.expect("the slot is there");
    assert!(failover.get::<_, bool>(0), "it is not taken along");
    source.stop().await.expect("it ends");
    world.finish().await;
}
