//! `faults`: the seeded trials of the source alone, one line each. Exit code 1 if any failed.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use harness::faults::{self, Campaign, snapshot::Scale};

/// The source against everything that can befall it
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Copy, Subcommand)]
enum What {
    /// Each change is published once
    Source(Seeds),
    /// A copy is exact from its end on, whatever is written meanwhile
    Snapshot {
        #[command(flatten)]
        seeds: Seeds,
        /// How often the source dies in each trial, at most
        #[arg(long, default_value_t = 20)]
        deaths: usize,
        /// Transactions a second, of all writers together
        #[arg(long, default_value_t = 400)]
        rate: u32,
    },
}

#[derive(Clone, Copy, clap::Args)]
struct Seeds {
    /// How many seeds
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// The first of them: --from 17 --seeds 1 repeats seed 17 alone
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// How many run at a time, each on servers of its own
    #[arg(long, default_value_t = 3)]
    lanes: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    let (name, campaign, Seeds { seeds, from, lanes }) = match Arguments::parse().what {
        What::Source(seeds) => ("source", Campaign::Source, seeds),
        What::Snapshot { seeds, deaths, rate } => {
            ("snapshot", Campaign::Snapshot(Scale { deaths_max: deaths, transactions_per_second: rate }), seeds)
        }
    };
    let began = Instant::now();
    let told = |verdict: &faults::Verdict| {
        let (seed, plan, seconds) = (verdict.seed, &verdict.plan, verdict.lasted.as_secs_f64());
        let remarks = if verdict.remarks.is_empty() { String::new() } else { format!("; {}", verdict.remarks) };
        match &verdict.fault {
            None => println!("seed {seed}: passed ({seconds:.1} s{remarks}): {plan}"),
            Some(fault) => println!("seed {seed}: FAILED ({seconds:.1} s): {plan}\n  {fault}"),
        }
    };
    match faults::run(campaign, from..from.saturating_add(seeds), lanes, told).await {
        Ok(failed) => {
            let seconds = began.elapsed().as_secs();
            println!("{name}: {seeds} seeds, {} passed, {failed} failed, in {seconds} s", seeds - failed as u64);
            if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(fault) => {
            eprintln!("faults: {fault:?}");
            ExitCode::FAILURE
        }
    }
}
