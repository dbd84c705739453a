//! Catching up from the slot: from the first record to the last, as the broker stamps them.

use std::time::Duration;

use harness::Error;
use harness::process::{Part, Process};
use nix::sys::signal::Signal;

use crate::backlog::{Backlog, Reader};
use crate::connect::{self, Rows, Worker};
use crate::line::{Line, Measured};
use crate::load::{self, BENCH};
use crate::meter::now;
use crate::plan::{Profile, System};
use crate::proc;
use crate::stage::Stage;
use crate::subject::Subject;
use crate::topic::{Stamp, Tally};

/// What pg_recvlogical may write before the first change: nothing of it is a record.
const BEFORE_FIRST_BYTES: u64 = 1_000;
/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Every system in its turn.
pub(crate) async fn all(
    stage: &Stage,
    backlog: &Backlog,
    stall: Duration,
    keep: &mut dyn FnMut(Line),
) -> Result<(), Error> {
    for reader in &backlog.readers {
        let line = match reader.system {
            System::PgRecvlogical => to_nowhere(stage, backlog, reader).await?,
            _ => to_topic(stage, backlog, reader, stall).await?,
        };
        stage.drop_slot(&reader.name).await?;
        keep(line);
    }
    Ok(())
}

async fn to_topic(stage: &Stage, backlog: &Backlog, reader: &Reader, stall: Duration) -> Result<Line, Error> {
    let topic = stage.topic(&reader.name);
    if reader.system != System::Tributary {
        topic.create(Stamp::Broker).await?;
    }
    let launched = now();
    let mut subject = start(stage, reader)?;
    let meter = stage.meter(subject.process_id())?;
    // A transaction's marker takes an offset too, so ours may have more offsets than records, and never fewer.
    let offsets = backlog.rows() + backlog.deletes();
    if reader.system == System::Tributary && !stall.is_zero() {
        stage.slot_is_read(&reader.name).await?;
        stage.stall_kafka(stall).await?;
    }
    let filled = topic.filled(offsets.cast_signed(), &mut subject).await?;
    let readings = meter.stop();
    let tally = topic.tally().await?;
    let fault = filled.err().or_else(|| difference(backlog, &tally));
    subject.stop().await?;
    if !reader.is_kept {
        topic.delete().await?;
    }
    let line = Line::new(Measured::Source, reader.system, backlog.events).with_fault(fault);
    Ok(match tally.window {
        Some(window) => line.took(launched, window).used(&readings, window),
        None => line,
    })
}

fn start(stage: &Stage, reader: &Reader) -> Result<Subject, Error> {
    let debezium = |profile, schemas| {
        let connector = connect::source(stage, &reader.name, profile, Rows::Left);
        Worker::start(stage, &reader.name, &[connector], schemas).map(Subject::Worker)
    };
    match reader.system {
        System::Debezium(profile) => debezium(profile, false),
        System::DebeziumSchemas => debezium(Profile::Default, true),
        _ => stage.tributary(Part::Source, &reader.name, "rdb").map(Subject::Tributary),
    }
}

/// Every change once: no loss is worth any speed.
fn difference(backlog: &Backlog, tally: &Tally) -> Option<String> {
    let (rows, tombstones) = (backlog.rows(), backlog.deletes());
    let is_equal = (tally.rows, tally.tombstones) == (rows, tombstones);
    (!is_equal).then(|| {
        let (got, gone) = (tally.rows, tally.tombstones);
        format!("the topic holds {got} changes and {gone} tombstones instead of {rows} and {tombstones}")
    })
}

/// The walsender's limit: PostgreSQL's own client, which decodes nothing and throws away what it gets.
async fn to_nowhere(stage: &Stage, backlog: &Backlog, reader: &Reader) -> Result<Line, Error> {
    let mut command = load::tool("pg_recvlogical", stage.source.address())?;
    command
        .args(["--start", "--no-loop", "--option=proto_version=1", "--file=/dev/null"])
        .arg(format!("--dbname={BENCH}"))
        .arg(format!("--slot={}", reader.name))
        .arg(format!("--option=publication_names={BENCH}"))
        .arg(format!("--endpos={}", backlog.end));
    let launched = now();
    let log = stage.folder().join(format!("{}.log", reader.name));
    let mut process = Process::spawn(&reader.name, command, &log, Signal::SIGKILL)?;
    let meter = stage.meter(process.id())?;
    let (mut first, mut tick) = (None, tokio::time::interval(LOOK_EVERY));
    let status = loop {
        tick.tick().await;
        if first.is_none() && proc::written_bytes(process.id()).is_some_and(|bytes| bytes > BEFORE_FIRST_BYTES) {
            first = Some(now());
        }
        if let Some(status) = process.ended() {
            break status;
        }
    };
    let last = now();
    let first = first.unwrap_or(launched);
    let readings = meter.stop();
    let fault = (!status.success()).then(|| process.tail());
    let line = Line::new(Measured::Source, reader.system, backlog.events).with_fault(fault);
    Ok(line.took(launched, (first, last)).used(&readings, (first, last)))
}
