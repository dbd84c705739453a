//! `faults`: the seeded trials of the source alone, one line each. Exit code 1 if any failed.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use harness::faults;

/// The source against everything that can befall it
#[derive(Parser)]
struct Arguments {
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
    let arguments = Arguments::parse();
    let began = Instant::now();
    let told = |verdict: &faults::Verdict| {
        let (seed, plan, seconds) = (verdict.seed, &verdict.plan, verdict.lasted.as_secs_f64());
        match &verdict.fault {
            None if verdict.unreached > 0 => {
                println!("seed {seed}: passed ({seconds:.1} s, {} points not reached): {plan}", verdict.unreached);
            }
            None => println!("seed {seed}: passed ({seconds:.1} s): {plan}"),
            Some(fault) => println!("seed {seed}: FAILED ({seconds:.1} s): {plan}\n  {fault}"),
        }
    };
    let seeds = arguments.from..arguments.from.saturating_add(arguments.seeds);
    match faults::run(seeds, arguments.lanes, told).await {
        Ok(failed) => {
            let (seeds, seconds) = (arguments.seeds, began.elapsed().as_secs());
            println!("source: {seeds} seeds, {} passed, {failed} failed, in {seconds} s", seeds - failed as u64);
            if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(fault) => {
            eprintln!("faults: {fault:?}");
            ExitCode::FAILURE
        }
    }
}
