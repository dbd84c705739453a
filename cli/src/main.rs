//! The binary `tributary`: reads the command line and the configuration, runs one command, prints its answer.
//!
//! Decides nothing about changes, rows or records: that is in the crates behind it.

mod args;
mod configuration;
mod dlq;
mod doctor;
mod failure;
mod init;
mod loads;
mod output;
mod reader;
mod roles;
mod slot;
mod snapshot;
mod state;
mod status;
mod table;
mod tables;
mod topic;
mod verification;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use service::{log, telemetry};

use args::{Arguments, Command, Dlq, Slot, Snapshot, Table, Topic};
use configuration::Configuration;
use dlq::settle::Way;
use failure::Failure;
use roles::Parts;
use snapshot::steer::{self, Course};

/// What a command that ran has to report. Its number is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Nothing.
    Fine = 0,
    /// A difference, a fault, a parked event.
    Finding = 1,
    /// Part of the answer could not be had.
    Unknown = 2,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|cause| Failure::System { operation: "start the threads of the process", cause })
        .and_then(|runtime| {
            let outcome = runtime.block_on(perform(arguments));
            // A question to a server that does not answer must not hold up the end.
            runtime.shutdown_timeout(Duration::from_millis(100));
            outcome
        });
    match outcome {
        Ok(outcome) => ExitCode::from(outcome as u8),
        Err(Failure::Logged) => ExitCode::from(2),
        Err(failure) => {
            eprintln!("tributary: {}", service::chain(&failure));
            ExitCode::from(2)
        }
    }
}

async fn perform(arguments: Arguments) -> Result<Outcome, Failure> {
    if matches!(arguments.command, Command::Init) {
        return init::write(&arguments.config);
    }
    let configuration = Configuration::read(&arguments.config)?;
    telemetry::start(&voice(&arguments.command, &configuration.log));
    match arguments.command {
        Command::Source => roles::run(configuration, Parts::source()).await,
        Command::Sink(groups) => roles::run(configuration, Parts::sink(groups.names)).await,
        Command::Run(groups) => roles::run(configuration, Parts::both(groups.names)).await,
        Command::Verify(verify) => verification::run(&configuration, verify).await,
        Command::Dlq(Dlq::List(list)) => dlq::list(&configuration, list).await,
        Command::Dlq(Dlq::Show(show)) => dlq::show(&configuration, show).await,
        Command::Dlq(Dlq::Retry(which)) => dlq::settle::run(&configuration, which, Way::Retry).await,
        Command::Dlq(Dlq::Resync(which)) => dlq::settle::run(&configuration, which, Way::Resync).await,
        Command::Dlq(Dlq::Discard(which)) => dlq::settle::run(&configuration, which, Way::Discard).await,
        Command::Slot(Slot::Show(form)) => slot::show::run(&configuration, form).await,
        Command::Slot(Slot::Drop(drop)) => slot::drop::run(&configuration, drop).await,
        Command::Topic(Topic::Grow(grow)) => topic::grow(&configuration, &grow),
        Command::Snapshot(Snapshot::Start(start)) => snapshot::start::run(&configuration, start).await,
        Command::Snapshot(Snapshot::Status(status)) => snapshot::status::run(&configuration, status).await,
        Command::Snapshot(Snapshot::Pause(load)) => steer::run(&configuration, Course::Pause, load).await,
        Command::Snapshot(Snapshot::Resume(load)) => steer::run(&configuration, Course::Resume, load).await,
        Command::Snapshot(Snapshot::Cancel(load)) => steer::run(&configuration, Course::Cancel, load).await,
        Command::Table(Table::Add(tables)) => table::add(&configuration, tables).await,
        Command::Table(Table::Remove(tables)) => table::remove(&configuration, tables).await,
        Command::Status(form) => status::run(&configuration, form).await,
        Command::Doctor(form) => doctor::run(&configuration, form).await,
        Command::Init => unreachable!("returned above"),
    }
}

/// A command that answers and ends speaks up only for what is odd, unless more was asked for.
fn voice(command: &Command, config: &log::Config) -> log::Config {
    let runs_for_long = matches!(command, Command::Source | Command::Sink(_) | Command::Run(_));
    if runs_for_long || config.level != log::Config::default().level {
        return config.clone();
    }
    log::Config { level: "error".to_owned(), ..config.clone() }
}
