//! `stack`: the servers to play with (`up`, `down`, `status`), and those of one test run (`run -- COMMAND...`).
//!
//! Whatever it starts it stops, also on failure, Ctrl-C and `kill -9`.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Parser, Subcommand};
use harness::playground;
use harness::stack::Stack;
use harness::{Error, supervisor};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// End-to-end tests wait more than they work, so more of them run at a time than there are cores.
const TEST_THREADS: &str = "6";

/// PostgreSQL, Kafka and Redis on free loopback ports.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Start a stack to play with, with a database that has a table in it, and print how to reach everything
    Up,
    /// Stop the stack that `up` has started; its data goes with it
    Down,
    /// Print how to reach the stack that `up` has started
    Status,
    /// Start the servers, run a command that finds them by TRIBUTARY_TEST_*, and stop them when it ends
    Run {
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// Hold the servers of `up` until a signal comes
    #[command(hide = true)]
    Serve,
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        What::Up => playground::up().await.map(|()| ExitCode::SUCCESS),
        What::Down => playground::down().await.map(|()| ExitCode::SUCCESS),
        What::Status => playground::status().await.map(|()| ExitCode::SUCCESS),
        What::Serve => playground::serve().await.map(|()| ExitCode::SUCCESS),
        What::Run { command } => run(&command).await,
    };
    outcome.unwrap_or_else(|fault| {
        eprintln!("stack: {fault:?}");
        ExitCode::FAILURE
    })
}

async fn run(command: &[String]) -> Result<ExitCode, Error> {
    let mut stop = stop_signals()?;
    let stack = tokio::select! {
        started = Stack::start() => started?,
        signal = stop.next() => return Ok(signalled(signal)),
    };
    eprintln!("stack: PostgreSQL, Kafka and Redis answer");
    let (program, arguments) = command.split_first().expect("the command line demands a command");
    let mut child = Command::new(program)
        .args(arguments)
        .envs(stack.addresses().variables())
        .env("RUST_TEST_THREADS", std::env::var("RUST_TEST_THREADS").unwrap_or(TEST_THREADS.to_owned()))
        // Its whole family is signalled together: `cargo test` alone would leave the tests running.
        .process_group(0)
        .spawn()
        .map_err(Error::during(format!("start {program}")))?;
    let group = Pid::from_raw(child.id().expect("it was just started") as i32);
    supervisor::watch_group(group, Signal::SIGTERM);
    let code = tokio::select! {
        ended = child.wait() => exit_code(ended.map_err(Error::during(format!("wait for {program}")))?),
        signal = stop.next() => {
            end(&mut child, group, signal).await;
            signalled(signal)
        }
    };
    supervisor::forget_group(group);
    stack.stop().await?;
    Ok(code)
}

/// Passes the signal on to the command and its children, and kills what is left of them.
async fn end(child: &mut Child, group: Pid, signal: Signal) {
    // A group that is gone already needs no signal.
    let _ = killpg(group, signal);
    let _ = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait().await;
}

struct StopSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

fn stop_signals() -> Result<StopSignals, Error> {
    let listen = |kind| signal(kind).map_err(Error::during("listen for signals"));
    Ok(StopSignals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
}

impl StopSignals {
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
        }
    }
}

fn signalled(signal: Signal) -> ExitCode {
    ExitCode::from(128 + signal as u8)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
