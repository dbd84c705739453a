//! Three brokers, replication 3, two must have every record: losing one stops nobody, losing two stops everybody without harm.

use std::time::Duration;

use harness::World;
use harness::oracle::audit;
use harness::process::Part;
use harness::servers::Role;
use harness::table::Table;
use harness::workload::{self, Pace, Workload};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep};

/// What a source may hold while it cannot publish: its buffers, Kafka's queue, and the process itself.
const MEMORY_BYTES_MAX: u64 = 256 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn one_broker_lost_stops_nobody_and_two_only_until_they_return() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).own_kafka(3).start().await;
    world.expect_log("WARN");
    let mut kafka = world.own_kafka.take().expect("the test has its own");
    world.configuration.set("source.buffer_bytes_max", 8 << 20).set("source.transaction_bytes_max", 4 << 20);
    let (mut source, mut sink) = (world.start(Part::Source), world.start(Part::Sink));
    source.ready(Duration::from_secs(90)).await.expect("the source streams");
    let (database, slot) = (world.source(Role::Superuser).await, format!("{}_audit", world.prefix()));
    audit::start(&database, &slot).await.expect("a slot for the audit");
    let pace = Pace { writers: 4, transactions_per_second: 20 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);

    // The one that coordinates our transactions, and leads some of our partitions.
    let transactional_id = format!("tributary.{}", world.prefix());
    let lost = kafka.coordinator_of(&transactional_id).await.expect("Kafka answers");
    kafka.broker(lost).kill9().await.expect("the broker is killed");
    world.in_source("INSERT INTO accounts VALUES (1001, 'with one broker lost', 1, true, NULL)").await;
    until_applied(&world, 1001, Duration::from_secs(120)).await;
    kafka.restart().await.expect("the broker comes back");

    let kept = random.random_range(0..3);
    for broker in (0..3).filter(|broker| *broker != kept) {
        kafka.broker(broker).kill9().await.expect("the broker is killed");
    }
    // More than all buffers hold.
    let wide = "INSERT INTO accounts SELECT i, repeat('x', 2000), 1, true, NULL FROM generate_series(2001, 17000) i";
    world.in_source(wide).await;
    let until = Instant::now() + Duration::from_secs(10);
    let mut memory_bytes = 0;
    while Instant::now() < until {
        memory_bytes = memory_bytes.max(source.memory_bytes());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(source.ended().is_none(), "the source waits; its log:\n{}", source.tail());
    assert!(memory_bytes < MEMORY_BYTES_MAX, "the source holds {memory_bytes} bytes while it waits");
    kafka.restart().await.expect("the brokers come back");
    until_applied(&world, 17_000, Duration::from_secs(180)).await;

    writers.stop().await.expect("the writers write");
    world.until_equal().await;
    world.check_topics().await;
    world.until_audit_agrees(&slot).await;
    world.check_nothing_parked(&["rdb"]).await;
    source.stop().await.expect("the source ends");
    sink.stop().await.expect("the sink ends");
    world.finish().await;
}

async fn until_applied(world: &World, id: i64, within: Duration) {
    let target = world.target(Role::Superuser).await;
    world
        .until(&format!("account {id} is applied"), within, async || {
            let row = target.query_opt("SELECT 1 FROM accounts WHERE id = $1", &[&id]).await;
            row.map_err(|cause| cause.to_string())?.map(|_| ()).ok_or_else(|| "it is not there".to_owned())
        })
        .await;
}

/// As where librdkafka has lost the leader of a partition, and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_of_which_nothing_comes_is_begun_anew() {
    let table = Table::new("public.users", &["id"], "id int PRIMARY KEY, name text");
    let mut world = World::builder().table(table).start().await;
    world.expect_log("its client brings none");
    world.configuration.environment("TRIBUTARY_FAILPOINTS", "fetch-lost=error@1");
    let (mut source, mut sink) = (world.start(Part::Source), world.start(Part::Sink));
    source.ready(Duration::from_secs(90)).await.expect("the source streams");
    world.in_source("INSERT INTO users SELECT i, 'user ' || i FROM generate_series(1, 100) i").await;
    sink.logs("its client brings none", Duration::from_secs(240)).await.expect("it is noticed");
    world.until_equal().await;
    source.stop().await.expect("the source ends");
    sink.stop().await.expect("the sink ends");
    world.finish().await;
}
