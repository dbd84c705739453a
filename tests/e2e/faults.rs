//! The source alone against everything that can befall it: a few seeds here, any number by `./dev faults source --seeds N`.

use std::cell::RefCell;
use std::time::Duration;

use harness::faults::snapshot::plan::Plan;
use harness::faults::snapshot::{Scale, plan::Company};
use harness::faults::{self, Campaign, Verdict, plan};
use harness::oracle::{audit, journal};
use harness::process::Part;
use harness::servers::Role;
use harness::workload::{self, Manner, Pace, Workload};
use harness::{World, seed};

/// How long a source may take to come to a point that it must come to.
const REACHED_WITHIN: Duration = Duration::from_secs(90);

/// Each failpoint by its name, one after the other: in the first start, in the load, in the stream, on the way to a list with
/// one table more, in an idle stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_dies_at_each_of_its_boundaries_publishes_each_change_once() {
    let shapes = workload::all();
    let mut world = World::builder().tables(workload::tables()).start().await;
    world.expect_log("WARN");
    world.configuration.set("source.chunk_rows_max", 50).set("source.start_timeout_seconds", 600);
    let database = world.source(Role::Superuser).await;
    journal::keep(&database, &world.tables).await.expect("the journal is kept");
    let slot = format!("{}_audit", world.prefix());
    audit::start(&database, &slot).await.expect("a slot for the audit");
    workload::fill(&database, world.seed, &shapes, 500).await.expect("the tables take rows");
    let manner = Manner { truncate: true, move_alone: true, persist: false };
    let pace = Pace { writers: 3, transactions_per_second: 30 };
    let writers =
        Workload::start_in(manner, world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let names: Vec<String> = world.tables.iter().map(|table| table.name.to_string()).collect();
    world.configuration.set("source.tables", names[1..].to_vec());
    let mut source = world.start(Part::Source);
    source.kill9().await.expect("it is killed");
    let while_written = [&plan::OF_FIRST_START[..], &plan::OF_START, &plan::OF_LOAD, &plan::OF_STREAM].concat();
    for point in while_written {
        dies_at(&world, &mut source, point).await;
    }
    world.configuration.set("source.tables", names);
    for point in plan::OF_LIST {
        dies_at(&world, &mut source, point).await;
    }
    let totals = writers.stop().await.expect("the writers write");
    assert!(totals.committed > 100, "the writers got to write only {totals:?}");
    // Nothing of ours is written any more, but the WAL goes on.
    let others = tokio_util::sync::CancellationToken::new();
    let other = world.source(Role::Superuser).await;
    let write = async {
        other.batch_execute("CREATE TABLE other (n serial)").await?;
        while others.run_until_cancelled(tokio::time::sleep(Duration::from_millis(100))).await.is_some() {
            other.batch_execute("INSERT INTO other DEFAULT VALUES").await?;
        }
        Ok::<(), tokio_postgres::Error>(())
    };
    let die = async {
        dies_at(&world, &mut source, plan::IDLE).await;
        others.cancel();
    };
    let (written, ()) = tokio::join!(write, die);
    written.expect("others write");

    source.restart_with(world.configuration.clone()).expect("it starts again");
    world.until_published().await;
    let history = audit::history(&database, &slot, &world.slot()).await.expect("the audit's slot can be read");
    for table in &world.tables {
        let judged = faults::judge(&database, table, &history, &world.topic(table).await).await;
        judged.unwrap_or_else(|fault| panic!("topic {}: {fault}", world.topic_name(table)));
    }
    source.stop().await.expect("the source ends");
    world.finish().await;
}

/// It starts, comes to the point, and is gone.
async fn dies_at(world: &World, source: &mut harness::process::Tributary, point: &str) {
    let mut configuration = world.configuration.clone();
    configuration.environment("TRIBUTARY_FAILPOINTS", &format!("{point}=kill"));
    source.restart_with(configuration).expect("it starts again");
    source.ends(REACHED_WITHIN).await.expect("it comes to the point");
    assert!(source.log().contains(&format!("failpoint {point}: the process ends")), "it died at {point}");
}

/// Some seeds of the campaign.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_bears_what_a_few_seeds_bring() {
    const SEEDS: u64 = 3;
    let first = seed::draw();
    println!("seeds {first} and the next {}, repeated by TRIBUTARY_SEED={first}", SEEDS - 1);
    bears(Campaign::Source, (0..SEEDS).map(|n| first.wrapping_add(n))).await;
}

/// Some seeds of the other campaign: one for each company that a load can have.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_exact_from_its_end_on_whatever_a_few_seeds_bring() {
    const SCALE: Scale = Scale { deaths_max: 6, transactions_per_second: 100 };
    let first = seed::draw();
    let has = |company| move |seed: &u64| Plan::draw(*seed, SCALE.deaths_max).company == company;
    let from_first = || (0..).map(|n| first.wrapping_add(n));
    let seeds_of = |company: Company| from_first().find(has(company)).expect("each is drawn sooner or later");
    let seeds = Company::ALL.map(seeds_of);
    println!("seeds {seeds:?}, repeated by TRIBUTARY_SEED={first}");
    bears(Campaign::Snapshot(SCALE), seeds).await;
}

async fn bears(campaign: Campaign, seeds: impl IntoIterator<Item = u64>) {
    let faults_found = RefCell::new(String::new());
    let told = |verdict: &Verdict| {
        let Verdict { seed, plan, remarks, .. } = verdict;
        println!("seed {seed} ({:.1} s; {remarks}): {plan}", verdict.lasted.as_secs_f64());
        if let Some(fault) = &verdict.fault {
            faults_found.borrow_mut().push_str(&format!("seed {seed}: {plan}\n  {fault}\n"));
        }
    };
    faults::run(campaign, seeds, 1, told).await.expect("the servers start");
    let faults_found = faults_found.into_inner();
    assert!(faults_found.is_empty(), "{faults_found}");
}
