//! At a steady rate: from just before the commit to the record at a consumer, and to the row in the target.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::Error;
use harness::process::{Part, Process, describe};
use harness::until::until;
use nix::sys::signal::Signal;

use crate::connect::{self, Rows, Worker};
use crate::line::{Line, Measured};
use crate::load::{self, BENCH};
use crate::meter::now;
use crate::plan::{Plan, System};
use crate::probe::{Probe, Sample};
use crate::stage::Stage;
use crate::subject::{Subject, Subscription};
use crate::topic::Stamp;
use crate::{Arguments, say};

/// What is written before anything counts.
const WARM_UP: u64 = 10;
/// How long the last rows may be on their way.
const ARRIVED_WITHIN: Duration = Duration::from_secs(60);

/// A system that is ready, and a probe at the end of its way.
struct Way {
    subject: Subject,
    probe: Probe,
}

/// Every system in its turn.
pub(crate) async fn all(
    stage: &Stage,
    plan: &Plan,
    arguments: &Arguments,
    keep: &mut dyn FnMut(Line),
) -> Result<(), Error> {
    say(&format!(
        "{} transactions a second, {WARM_UP} s of warm-up and {} s measured for each system",
        arguments.rate, arguments.seconds
    ));
    for (measured, systems) in [(Measured::ToRecord, &plan.to_record), (Measured::ToRow, &plan.to_row)] {
        for rep in 0..arguments.reps {
            for system in systems {
                keep(measure(stage, arguments, measured, *system, rep).await?);
            }
        }
    }
    Ok(())
}

async fn measure(
    stage: &Stage,
    arguments: &Arguments,
    measured: Measured,
    system: System,
    rep: u32,
) -> Result<Line, Error> {
    let end = if measured == Measured::ToRow { "row" } else { "record" };
    let name = format!("{end}{rep}_{}", system.name().replace('-', "_"));
    let client = load::connect(&stage.source).await?;
    load::empty(&client).await?;
    if system != System::Tributary {
        load::create_slot(&client, &name).await?;
    }
    let Way { mut subject, probe } = if measured == Measured::ToRow {
        to_row(stage, system, &name).await?
    } else {
        to_record(stage, system, &name).await?
    };
    stage.slot_is_read(&name).await?;

    let meter = stage.meter(subject.process_id())?;
    let began = now();
    let written = traffic(stage, arguments).await?;
    let ended = now();
    let arrived = until("every row is seen", ARRIVED_WITHIN, async || match (probe.seen(), subject.fault()) {
        (_, Some(fault)) => Ok(Some(fault)),
        (seen, None) if seen == written => Ok(None),
        (seen, None) => Err(format!("{seen} of {written}")),
    });
    let fault = arrived.await.unwrap_or_else(|fault| Some(fault.to_string()));
    let readings = meter.stop();
    // Before the probe: that of a pipe ends with its writer.
    subject.stop().await?;
    let samples = probe.stop().await?;
    stage.drop_slot(&name).await?;

    let from = began + WARM_UP as f64;
    let samples: Vec<Sample> = samples.into_iter().filter(|sample| sample.written >= from).collect();
    let mut line = Line::new(measured, system, samples.len() as u64).with_fault(fault);
    line.seconds = Some(arguments.seconds as f64);
    line.events_per_s = Some((samples.len() as f64 / arguments.seconds as f64).round());
    Ok(line.late(&samples).used(&readings, (from, ended)))
}

async fn to_record(stage: &Stage, system: System, name: &str) -> Result<Way, Error> {
    if system == System::PgRecvlogical {
        return to_pipe(stage, name);
    }
    let topic = stage.topic(name);
    topic.create(Stamp::Producer).await?;
    let consumer = topic.consumer(&[("fetch.wait.max.ms", "100")]).map_err(Error::during("make a consumer"))?;
    let probe = Probe::of_topic(consumer)?;
    let subject = match system {
        System::Debezium(profile) => {
            let connector = connect::source(stage, name, profile, Rows::Left);
            Subject::Worker(Worker::start(stage, name, &[connector], false)?)
        }
        _ => {
            let mut source = stage.tributary(Part::Source, name, "rdb")?;
            source.ready(Duration::from_secs(60)).await?;
            Subject::Tributary(source)
        }
    };
    Ok(Way { subject, probe })
}

/// The floor: PostgreSQL's own client to a named pipe, with no Kafka behind.
fn to_pipe(stage: &Stage, name: &str) -> Result<Way, Error> {
    let pipe = stage.folder().join(format!("{name}.pipe"));
    make_pipe(&pipe)?;
    let mut command = load::tool("pg_recvlogical", stage.source.address())?;
    command
        .args(["--start", "--no-loop", "--option=proto_version=1"])
        .arg(format!("--dbname={BENCH}"))
        .arg(format!("--slot={name}"))
        .arg(format!("--option=publication_names={BENCH}"))
        .arg(format!("--file={}", pipe.display()));
    let log = stage.folder().join(format!("{name}.log"));
    let process = Process::spawn(name, command, &log, Signal::SIGKILL)?;
    Ok(Way { subject: Subject::Command(process), probe: Probe::of_pipe(pipe)? })
}

async fn to_row(stage: &Stage, system: System, name: &str) -> Result<Way, Error> {
    load::install_target(&stage.target).await?;
    let subject = match system {
        System::Native => Subject::Subscription(Subscription::start(&stage.target, &stage.source, name, false).await?),
        System::DebeziumJdbc(profile) => {
            let topic = stage.topic(name);
            topic.create(Stamp::Producer).await?;
            let source = connect::source(stage, name, profile, Rows::Left);
            let sink = connect::sink(stage.target.address(), &topic.name, name, profile);
            Subject::Worker(Worker::start(stage, name, &[source, sink], true)?)
        }
        _ => {
            stage.topic(name).create(Stamp::Producer).await?;
            let mut both = stage.tributary(Part::Run, name, "rdb")?;
            both.ready(Duration::from_secs(60)).await?;
            Subject::Tributary(both)
        }
    };
    let probe = Probe::of_table(load::connect(&stage.target).await?);
    Ok(Way { subject, probe })
}

/// Runs the traffic to its end. How many rows were written.
async fn traffic(stage: &Stage, arguments: &Arguments) -> Result<u64, Error> {
    let mut pgbench = load::start_traffic(&stage.source, arguments.rate, WARM_UP + arguments.seconds, stage.folder())?;
    let status = pgbench.wait(Duration::from_secs(WARM_UP + arguments.seconds + 60)).await?;
    let said = fs::read_to_string(pgbench.log()).map_err(Error::during("read what pgbench said"))?;
    // One file for all runs: the last is this one's.
    let done = said.lines().rev().find_map(|line| line.strip_prefix("number of transactions actually processed: "));
    match done.and_then(|text| text.split_whitespace().next()?.parse().ok()) {
        Some(written) if status.success() => Ok(written),
        _ => Err(Error::new(format!("the traffic had faults, {}: {}", describe(status), pgbench.tail()))),
    }
}

fn make_pipe(path: &Path) -> Result<(), Error> {
    let status = Command::new("mkfifo").arg(path).status().map_err(Error::during("run mkfifo"))?;
    if status.success() { Ok(()) } else { Err(Error::new(format!("mkfifo {} failed", path.display()))) }
}
