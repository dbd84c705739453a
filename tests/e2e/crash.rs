//! Invariants 2 to 7 at once: everything is killed, again and again, at moments drawn from the seed.

use std::time::Duration;

use harness::oracle::audit;
use harness::process::{Part, Tributary};
use harness::servers::{Kafka, Postgres, Redis, Role};
use harness::workload::{self, Pace, Workload};
use harness::{Error, World};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep_until};

/// How long the writers write and everything dies.
const LASTS: Duration = Duration::from_secs(60);

/// The moments at which one part is killed.
struct Moments(Vec<Instant>);

impl Moments {
    fn draw(random: &mut ChaCha8Rng, from: Instant, count: usize) -> Moments {
        let mut all: Vec<Instant> = (0..count).map(|_| from + LASTS.mul_f64(random.random())).collect();
        all.sort();
        Moments(all)
    }
}

/// Invariant 2 by itself, with nothing else failing: the source dies in its load and in the stream, between any two steps.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_killed_again_and_again_publishes_each_change_once() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).start().await;
    world.expect_log("WARN");
    world.configuration.set("source.chunk_rows_max", 50);
    let database = world.source(Role::Superuser).await;
    workload::fill(&database, world.seed, &shapes, 500).await.expect("the tables take rows");
    let mut source = world.start(Part::Source);
    source.ready(Duration::from_secs(90)).await.expect("the source streams");
    source.kill9().await.expect("it is killed");
    let slot = format!("{}_audit", world.prefix());
    audit::start(&database, &slot).await.expect("a slot for the audit");
    let pace = Pace { writers: 3, transactions_per_second: 50 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    for _ in 0..12 {
        source.restart().expect("it starts again");
        source.ready(Duration::from_secs(90)).await.expect("the source streams again");
        sleep_until(Instant::now() + Duration::from_millis(random.random_range(0..400))).await;
        source.kill9().await.expect("it is killed");
    }
    source.restart().expect("it starts again");
    writers.stop().await.expect("the writers write");
    world.until_published().await;
    world.until_audit_agrees(&slot).await;
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// Eight tables, four partitions, four writers for a minute; the source dies ten times, a sink ten times, the broker and
/// the target twice each, Redis once.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_whatever_is_killed() {
    let shapes = workload::all();
    let mut world =
        World::builder().tables(workload::tables()).redis_group().own_target().own_kafka(1).own_redis().start().await;
    // Whoever loses a neighbour says so, once. What nobody may say here is ERROR.
    world.expect_log("WARN");
    // A broker that was killed can take its time to come back where so much else runs.
    world.configuration.set("source.start_timeout_seconds", 300);
    world.configuration.set("groups.rdb.session_timeout_seconds", 6).set("groups.redis.session_timeout_seconds", 6);
    let source_database = world.source(Role::Superuser).await;
    workload::fill(&source_database, world.seed, &shapes, 200).await.expect("the tables take rows");
    let mut source = world.start(Part::Source);
    source.ready(Duration::from_secs(90)).await.expect("the source streams");
    let slot = format!("{}_audit", world.prefix());
    audit::start(&source_database, &slot).await.expect("a slot for the audit");
    let (mut first, mut second) = (world.start(Part::Sink), world.start(Part::Sink));
    let kafka = world.own_kafka.take().expect("the test has its own");
    let target = world.own_target.take().expect("the test has its own");
    let redis = world.own_redis.take().expect("the test has its own");

    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    let begin = Instant::now();
    let mut moments = |count| Moments::draw(&mut random, begin, count);
    let (of_source, of_first, of_second) = (moments(10), moments(5), moments(5));
    let (of_kafka, of_target, of_redis) = (moments(2), moments(2), moments(1));
    let pace = Pace { writers: 4, transactions_per_second: 25 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let deaths = tokio::try_join!(
        kill(&mut source, of_source),
        kill(&mut first, of_first),
        kill(&mut second, of_second),
        kill_kafka(kafka, of_kafka),
        kill_postgres(target, of_target),
        kill_redis(redis, of_redis),
    );
    // The servers must live until the world has been looked at.
    let (_, _, _, _kafka, _target, _redis) = deaths.expect("whatever is killed comes back");
    sleep_until(begin + LASTS).await;
    let totals = writers.stop().await.expect("the writers write");
    assert!(totals.committed > 500, "the writers got to write only {totals:?}");

    world.until_equal().await;
    world.check_topics().await;
    world.until_audit_agrees(&slot).await;
    world.until_streams_agree().await;
    world.check_nothing_parked(&["rdb", "redis"]).await;
    for process in [&mut source, &mut first, &mut second] {
        process.stop().await.expect("it ends");
    }
    world.finish().await;
}

async fn kill(process: &mut Tributary, moments: Moments) -> Result<(), Error> {
    for moment in moments.0 {
        sleep_until(moment).await;
        if let Some(status) = process.ended() {
            return Err(Error::new(format!("{} ended by itself, {status}:\n{}", process.name(), process.tail())));
        }
        process.kill9().await?;
        process.restart()?;
    }
    Ok(())
}

/// Once in an orderly way, once not.
async fn kill_kafka(mut kafka: Kafka, moments: Moments) -> Result<Kafka, Error> {
    for (n, moment) in moments.0.into_iter().enumerate() {
        sleep_until(moment).await;
        if n % 2 == 0 {
            kafka.kill9().await?
        } else {
            kafka.stop().await?
        }
        kafka.restart().await?;
    }
    Ok(kafka)
}

async fn kill_postgres(mut server: Postgres, moments: Moments) -> Result<Postgres, Error> {
    for (n, moment) in moments.0.into_iter().enumerate() {
        sleep_until(moment).await;
        if n % 2 == 0 {
            server.kill9().await?
        } else {
            server.stop().await?
        }
        server.restart().await?;
    }
    Ok(server)
}

async fn kill_redis(mut redis: Redis, moments: Moments) -> Result<Redis, Error> {
    for moment in moments.0 {
        sleep_until(moment).await;
        redis.kill9().await?;
        redis.restart().await?;
    }
    Ok(redis)
}
