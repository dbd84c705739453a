//! The first load: rows at rest to the topic and all the way to the target's table, and what it costs those who write meanwhile.

use std::time::{Duration, Instant};

use harness::Error;
use harness::configuration::Configuration;
use harness::process::{Part, Process};
use harness::until::until;
use nix::sys::signal::Signal;

use crate::connect::{self, Rows, Worker};
use crate::line::{Line, Measured};
use crate::load::{self, AT_REST, TABLE};
use crate::meter::now;
use crate::plan::{Plan, System};
use crate::probe::{Probe, Sample};
use crate::stage::Stage;
use crate::subject::{Subject, Subscription};
use crate::topic::{Stamp, Topic};
use crate::{Arguments, say};

/// How long a load may take.
const ALL_WITHIN: Duration = Duration::from_secs(1800);
/// How long it may take until the last rows are seen.
const ARRIVED_WITHIN: Duration = Duration::from_secs(60);
/// Where the topic is that tables share.
const SHARED: &str = "all";
/// For how long the latency is taken when the load is done, and how long nothing counts on both sides of that.
const AFTERWARDS: Duration = Duration::from_secs(20);
const BETWEEN_S: f64 = 1.0;

/// Every system in its turn.
pub(crate) async fn all(
    stage: &Stage,
    plan: &Plan,
    arguments: &Arguments,
    keep: &mut dyn FnMut(Line),
) -> Result<(), Error> {
    let client = load::connect(&stage.source).await?;
    load::empty(&client).await?;
    say(&format!("writing {} rows", arguments.rows));
    load::write_rows(&client, arguments.rows).await?;
    // A broker that has just started compiles itself while it works, and that would count against whoever comes first.
    say("one load that does not count, for the broker to get warm");
    to_topic(stage, System::Tributary, "warm", arguments.rows).await?;
    for rep in 0..arguments.reps {
        for system in &plan.snapshot {
            let name = format!("snapshot{rep}_{}", system.name().replace('-', "_"));
            keep(match system {
                System::Copy => to_nowhere(stage, &name, arguments.rows).await?,
                _ => to_topic(stage, *system, &name, arguments.rows).await?,
            });
        }
    }
    for rep in 0..arguments.reps {
        for system in &plan.snapshot_to_row {
            let name = format!("load{rep}_{}", system.name());
            keep(to_row(stage, *system, &name, arguments.rows).await?);
        }
    }
    load::set_aside(&client).await?;
    for rep in 0..arguments.reps {
        beside(stage, &format!("beside{rep}"), arguments, keep).await?;
    }
    Ok(())
}

/// The limit: the server's own reading of the table, and nobody who does anything with it.
async fn to_nowhere(stage: &Stage, name: &str, rows: u64) -> Result<Line, Error> {
    let mut command = load::tool("psql", stage.source.address())?;
    command.arg("--no-psqlrc").arg(format!("--command=\\copy {TABLE} to '/dev/null'"));
    let launched = now();
    let mut process = Process::spawn(name, command, &stage.folder().join(format!("{name}.log")), Signal::SIGKILL)?;
    let meter = stage.meter(process.id())?;
    let status = process.wait(ALL_WITHIN).await?;
    let (window, readings) = ((launched, now()), meter.stop());
    let fault = (!status.success()).then(|| process.tail());
    let line = Line::new(Measured::Snapshot, System::Copy, rows).with_fault(fault);
    Ok(line.took(launched, window).used(&readings, window))
}

async fn to_topic(stage: &Stage, system: System, name: &str, rows: u64) -> Result<Line, Error> {
    let topic = match system {
        System::Tables(tables) => {
            load::divide(&load::connect(&stage.source).await?, tables).await?;
            stage.topic_called(name, SHARED)
        }
        _ => stage.topic(name),
    };
    topic.create(Stamp::Broker).await?;
    let launched = now();
    let mut subject = start(stage, system, name).await?;
    let meter = stage.meter(subject.process_id())?;
    let filled = topic.filled(rows.cast_signed(), &mut subject).await?;
    let readings = meter.stop();
    let tally = topic.tally().await?;
    let differs = (tally.rows != rows).then(|| format!("the topic holds {} rows instead of {rows}", tally.rows));
    subject.stop().await?;
    topic.delete().await?;
    stage.drop_slot(name).await?;
    let line = Line::new(Measured::Snapshot, system, rows).with_fault(filled.err()).with_fault(differs);
    Ok(match tally.window {
        Some(window) => line.took(launched, window).used(&readings, window),
        None => line,
    })
}

async fn start(stage: &Stage, system: System, name: &str) -> Result<Subject, Error> {
    let mut configuration = loading(stage, name);
    match system {
        System::Debezium(profile) => {
            load::create_slot(&load::connect(&stage.source).await?, name).await?;
            let connector = connect::source(stage, name, profile, Rows::Copied);
            return Worker::start(stage, name, &[connector], false).map(Subject::Worker);
        }
        System::Readers(readers) => {
            configuration.set("source.snapshot_readers", i64::from(readers));
        }
        System::Tables(_) => {
            configuration
                .set("source.tables", vec!["many.*"])
                .set(&format!("source.topics.routes.{SHARED}"), vec!["many.*"]);
        }
        _ => {}
    }
    stage.launch(Part::Source, name, "rdb", configuration).map(Subject::Tributary)
}

/// Tributary's configuration for rows at rest.
fn loading(stage: &Stage, name: &str) -> Configuration {
    let mut configuration = stage.configuration(name, "rdb");
    configuration.set("source.snapshot", "initial");
    configuration
}

/// From the start of the system until the last row is committed on the target.
async fn to_row(stage: &Stage, system: System, name: &str, rows: u64) -> Result<Line, Error> {
    load::install_target(&stage.target).await?;
    let target = load::connect(&stage.target).await?;
    // There are no statistics: for one row the planner would read the whole table.
    let by_key = load::connect(&stage.target).await?;
    load::run(&by_key, "SET enable_seqscan = off").await?;
    let (launched, mut subject) = if system == System::Native {
        load::create_slot(&load::connect(&stage.source).await?, name).await?;
        let launched = now();
        (launched, Subscription::start(&stage.target, &stage.source, name, true).await.map(Subject::Subscription)?)
    } else {
        stage.topic(name).create(Stamp::Broker).await?;
        let launched = now();
        (launched, stage.launch(Part::Run, name, "rdb", loading(stage, name)).map(Subject::Tributary)?)
    };
    let meter = stage.meter(subject.process_id())?;
    let mut last_seen = None;
    let arrived = until("every row is in the target", ALL_WITHIN, async || {
        if let Some(fault) = subject.fault() {
            return Ok(Some(fault));
        }
        // A count of everything would be a load of its own: first the last row is looked for.
        let is_near = load::has_row(&by_key, rows).await.map_err(|fault| format!("{fault:?}"))?;
        last_seen = is_near.then(|| last_seen.unwrap_or_else(now));
        let seen = if is_near { load::count(&target).await.map_err(|fault| format!("{fault:?}"))? } else { 0 };
        if seen == rows { Ok(None) } else { Err(format!("{seen} of {rows}")) }
    });
    let fault = arrived.await.unwrap_or_else(|fault| Some(fault.to_string()));
    let readings = meter.stop();
    let content = load::content(&target).await?;
    let expected = load::content(&load::connect(&stage.source).await?).await?;
    let differs = (content != expected).then(|| "the target differs from the source".to_owned());
    let ended = match system {
        // Its copy is one transaction, which bears the time of an earlier one: its worker keeps the first origin's for all.
        System::Native => last_seen.unwrap_or_else(now),
        _ => load::committed(&target).await?.1,
    };
    let window = (launched, ended);
    subject.stop().await?;
    stage.drop_slot(name).await?;
    if system == System::Tributary {
        stage.topic(name).delete().await?;
    }
    let line = Line::new(Measured::SnapshotToRow, system, rows).with_fault(fault).with_fault(differs);
    Ok(line.took(launched, window).used(&readings, window))
}

/// A steady rate of changes to one table, while another is loaded and when that is done.
async fn beside(stage: &Stage, name: &str, arguments: &Arguments, keep: &mut dyn FnMut(Line)) -> Result<(), Error> {
    load::empty(&load::connect(&stage.source).await?).await?;
    let (changes, rows) = (stage.topic(name), stage.topic_called(name, AT_REST));
    changes.create(Stamp::Producer).await?;
    rows.create(Stamp::Broker).await?;
    let consumer = changes.consumer(&[("fetch.wait.max.ms", "100")]).map_err(Error::during("make a consumer"))?;
    let probe = Probe::of_topic(consumer)?;
    let mut traffic = load::start_traffic(&stage.source, arguments.rate, ALL_WITHIN.as_secs(), stage.folder())?;
    let mut configuration = loading(stage, name);
    configuration.set("source.tables", vec![TABLE, AT_REST]);
    let mut subject = Subject::Tributary(stage.launch(Part::Source, name, "rdb", configuration)?);
    let meter = stage.meter(subject.process_id())?;
    let filled = rows.filled(arguments.rows.cast_signed(), &mut subject).await?;
    let done = Instant::now();
    say("loaded; now the same without a load");
    tokio::time::sleep_until((done + AFTERWARDS).into()).await;
    // In order: it finishes what it is at, and says how much it was.
    traffic.stop(Signal::SIGINT, ARRIVED_WITHIN).await?;
    let written = load::count(&load::connect(&stage.source).await?).await?;
    // A row that the stream has brought before its table is loaded comes twice.
    let arrived = until("every row is seen", ARRIVED_WITHIN, async || match (probe.seen(), subject.fault()) {
        (_, Some(fault)) => Ok(Some(fault)),
        (seen, None) if seen >= written => Ok(None),
        (seen, None) => Err(format!("{seen} of {written}")),
    });
    let fault = arrived.await.unwrap_or_else(|fault| Some(fault.to_string()));
    let (ended, readings) = (now(), meter.stop());
    let tally = rows.tally().await?;
    subject.stop().await?;
    let samples = probe.stop().await?;
    stage.drop_slot(name).await?;
    clear(&[changes, rows]).await?;
    let differs = (tally.rows != arguments.rows).then(|| format!("the topic holds {} rows", tally.rows));
    let (first, last) = tally.window.unwrap_or((ended, ended));
    let windows = [
        (Measured::WhileLoading, (first + BETWEEN_S, last)),
        // What waits at the end of a load is its cost as well.
        (Measured::WhenLoaded, (last + BETWEEN_S, ended - BETWEEN_S)),
    ];
    for (measured, window) in windows {
        let within = |sample: &&Sample| sample.written >= window.0 && sample.written < window.1;
        let samples: Vec<Sample> = samples.iter().filter(within).copied().collect();
        let line = Line::new(measured, System::Tributary, samples.len() as u64);
        let line = line.with_fault(filled.clone().err()).with_fault(fault.clone()).with_fault(differs.clone());
        keep(line.late(&samples).took(window.0, window).used(&readings, window));
    }
    Ok(())
}

async fn clear(topics: &[Topic]) -> Result<(), Error> {
    for topic in topics {
        topic.delete().await?;
    }
    Ok(())
}
