//! The business that goes on meanwhile: pgbench with the scripts in stack/demo/traffic, at a fixed pace.

use std::fs;
use std::path::Path;
use std::time::Duration;

use harness::Error;
use harness::process::{Process, describe};
use harness::servers::{Postgres, Role};
use nix::sys::signal::Signal;

use crate::databases::{MONOLITH, client, scripts};

/// Transactions a second. Not all the machine can do: two databases, Kafka and three of ours share it.
pub(crate) const PACE: u32 = 200;

/// How often each script is drawn.
const WEIGHTS: [(&str, u32); 13] = [
    ("place_order", 4),
    ("advance_order", 4),
    ("customers", 3),
    ("edit_product", 3),
    ("reviews", 2),
    ("coupons", 2),
    ("delay_flights", 2),
    ("change_flights", 2),
    ("weather", 2),
    ("cancel_order", 1),
    ("rename_product", 1),
    ("count_stock", 1),
    ("change_of_mind", 1),
];

/// Running traffic.
pub(crate) struct Traffic {
    pgbench: Process,
}

impl Traffic {
    /// Starts it. It goes on until it is stopped.
    pub(crate) fn start(source: &Postgres, logs: &Path) -> Result<Traffic, Error> {
        let mut pgbench = client(source.address(), "pgbench", Role::Application, MONOLITH)?;
        pgbench.args(["--no-vacuum", "--client=4", "--jobs=2", "--time=3600", "--max-tries=10"]);
        pgbench.arg(format!("--rate={PACE}"));
        for (script, weight) in WEIGHTS {
            pgbench.arg("--file").arg(format!("{}/traffic/{script}.sql@{weight}", scripts().display()));
        }
        // Abandoned, it has nothing to finish.
        Ok(Traffic { pgbench: Process::spawn("pgbench", pgbench, &logs.join("pgbench.log"), Signal::SIGKILL)? })
    }

    /// Lets each client finish its transaction. The number of transactions that were done.
    pub(crate) async fn stop(mut self) -> Result<u64, Error> {
        // The signal by which pgbench itself ends a run when its time is over.
        let status = self.pgbench.stop(Signal::SIGALRM, Duration::from_secs(20)).await?;
        let said = fs::read_to_string(self.pgbench.log()).map_err(Error::during("read what pgbench said"))?;
        let number = |label: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(label))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        // A client that meets an error leaves, and the others go on: the traffic would be thinner than was said.
        match (number("number of transactions actually processed: "), number("number of failed transactions: ")) {
            (Some(done), Some(0)) if status.success() && !said.contains("aborted") => Ok(done),
            _ => Err(Error::new(format!("the traffic had faults, {}: {}", describe(status), self.pgbench.tail()))),
        }
    }
}
