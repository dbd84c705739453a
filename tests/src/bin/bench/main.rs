//! `bench`: how fast tributary moves rows, beside what others make of the same rows on the same servers in the same run.
//!
//!     source    a backlog of changes, slot ──▶ topic           beside pg_recvlogical, which decodes nothing and writes to /dev/null
//!     apply     the same backlog, topic ──▶ empty table        beside PostgreSQL's own subscription over the same WAL
//!     snapshot  rows at rest, table ──▶ topic, ──▶ table       beside COPY TO STDOUT, and the subscription's own first copy
//!     latency   a steady rate, commit ──▶ record, ──▶ row      beside pg_recvlogical to a pipe, and the subscription
//!
//! Ratios within one run are what carries: all of it shares one machine, and the machine may be shared with others. CPU
//! seconds per million changes are sturdier than the clock; `other` is what nobody used whom we watch.

mod apply;
mod backlog;
mod connect;
mod latency;
mod line;
mod load;
mod meter;
mod plan;
mod probe;
mod proc;
mod report;
mod snapshot;
mod source;
mod stage;
mod stamp;
mod subject;
mod topic;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use harness::Error;

use backlog::Backlog;
use line::Line;
use plan::Plan;
use stage::Stage;

/// Measures tributary beside other systems, all in one run on real servers that it starts and stops.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench")]
struct Arguments {
    /// What to measure
    #[arg(required = true, value_enum)]
    benches: Vec<Bench>,
    /// Measure Debezium too, in Kafka Connect (fetched by Maven); its JDBC sink only where TRIBUTARY_BENCH_PLUGINS names a
    /// Connect plugin folder that holds it, because no registry serves it
    #[arg(long)]
    peers: bool,
    /// Print one JSON object a line for each measurement, and no table
    #[arg(long)]
    json: bool,
    /// Changes in the backlog of `source` and `apply`, in hundreds
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=50_000_000))]
    events: u64,
    /// Changes of the backlog in one PostgreSQL transaction, in hundreds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(100..=50_000_000))]
    transaction: u64,
    /// Let Kafka stand still for so many seconds while tributary's source has work: its memory is what counts then
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=600))]
    stall: u64,
    /// Transactions a second of `latency`
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Measured time of `latency`, after 10 s of warm-up
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Rows at rest of `snapshot`
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    rows: u64,
    /// Let `snapshot` run with 1, 2 and 4 readers too, and with the rows in 10, 100 and 1,000 tables
    #[arg(long)]
    scaling: bool,
    /// Repetitions, the systems taken in turn; the table shows medians
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    reps: u32,
}

/// A thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bench {
    /// Catching up with a backlog: from the slot to the topic
    Source,
    /// Catching up with the same backlog: from the topic to an empty table
    Apply,
    /// The first load: from rows at rest to the topic, to the target's table, and what it costs those who write meanwhile
    Snapshot,
    /// From commit to record, and from commit to row, at a steady rate
    Latency,
}

impl Arguments {
    fn asks(&self, bench: Bench) -> bool {
        self.benches.contains(&bench)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = tokio::select! {
        outcome = run(&arguments) => outcome,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("bench: interrupted; everything is stopped");
            return ExitCode::from(130);
        }
    };
    match outcome {
        Ok(lines) if lines.iter().all(|line| line.fault.is_none()) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("bench: {fault:?}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<Vec<Line>, Error> {
    let plan = Plan::new(arguments.peers, arguments.scaling)?;
    plan.notes.iter().for_each(|note| say(note));
    let stage = Stage::start(&plan).await?;
    let mut lines = Vec::new();
    let mut keep = |line: Line| {
        if arguments.json {
            // A reader that went away (`| head`) is no reason to lose the servers.
            let _gone = writeln!(std::io::stdout(), "{}", line.json());
        } else {
            say(&line.summary());
        }
        lines.push(line);
    };
    if arguments.asks(Bench::Source) || arguments.asks(Bench::Apply) {
        let backlog = Backlog::prepare(&stage, &plan, arguments).await?;
        if arguments.asks(Bench::Source) {
            source::all(&stage, &backlog, Duration::from_secs(arguments.stall), &mut keep).await?;
        }
        if arguments.asks(Bench::Apply) {
            apply::all(&stage, &backlog, &mut keep).await?;
        }
        backlog.clear(&stage).await?;
    }
    if arguments.asks(Bench::Snapshot) {
        snapshot::all(&stage, &plan, arguments, &mut keep).await?;
    }
    if arguments.asks(Bench::Latency) {
        latency::all(&stage, &plan, arguments, &mut keep).await?;
    }
    stage.stop().await?;
    if !arguments.json {
        let _gone = write!(std::io::stdout(), "{}", report::tables(&lines));
    }
    Ok(lines)
}

/// What happens, for whoever waits: standard output is for the figures.
fn say(sentence: &str) {
    eprintln!("bench: {sentence}");
}
