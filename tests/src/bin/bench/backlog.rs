//! A load that lies in the WAL, and who waits for it: each system and repetition has a slot of its own over the same changes.

use std::time::{Duration, Instant};

use harness::Error;
use harness::process::{Part, Tributary};

use crate::load::{self, Content, END_MARKS};
use crate::plan::{Plan, System};
use crate::stage::Stage;
use crate::topic::Stamp;
use crate::{Arguments, Bench, say};

/// One that waits. Its slot, and the prefix of its topic, are called alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) system: System,
    pub(crate) name: String,
    /// Whether others read its topic later.
    pub(crate) is_kept: bool,
}

/// A load, written.
#[derive(Debug)]
pub(crate) struct Backlog {
    pub(crate) events: u64,
    /// Where the WAL ends behind it.
    pub(crate) end: String,
    /// What the table holds after it.
    pub(crate) content: Content,
    /// From the slot to a topic or to nowhere, in the order of their turns.
    pub(crate) readers: Vec<Reader>,
    /// To a table, in the order of their turns.
    pub(crate) appliers: Vec<Reader>,
}

impl Backlog {
    /// Makes the slots, then writes the load.
    pub(crate) async fn prepare(stage: &Stage, plan: &Plan, arguments: &Arguments) -> Result<Backlog, Error> {
        let turns = |bench: &str, reps: u32, systems: &[System]| {
            let reader = |rep: u32, system: System| Reader {
                system,
                name: format!("{bench}{rep}_{}", system.name().replace('-', "_")),
                is_kept: rep == 0 && feeds(system) && arguments.asks(Bench::Apply),
            };
            (0..reps).flat_map(|rep| systems.iter().map(move |system| reader(rep, *system))).collect::<Vec<_>>()
        };
        let readers = if arguments.asks(Bench::Source) {
            turns("source", arguments.reps, &plan.source)
        } else {
            let feeders: Vec<System> = plan.source.iter().copied().filter(|system| feeds(*system)).collect();
            turns("source", 1, &feeders)
        };
        let appliers =
            if arguments.asks(Bench::Apply) { turns("apply", arguments.reps, &plan.apply) } else { Vec::new() };

        let client = load::connect(&stage.source).await?;
        for reader in readers.iter().chain(appliers.iter().filter(|reader| reader.system == System::Native)) {
            match reader.system {
                System::Tributary => register(stage, &reader.name).await?,
                _ => load::create_slot(&client, &reader.name).await?,
            }
        }
        let events = arguments.events / 100 * 100;
        say(&format!("writing {events} changes, {} a transaction", arguments.transaction));
        let began = Instant::now();
        let end = load::write_backlog(&client, events, arguments.transaction).await?;
        say(&format!("written in {:.1} s; now each system catches up in turn", began.elapsed().as_secs_f64()));
        let content = load::content(&client).await?;
        Ok(Backlog { events, end, content, readers, appliers })
    }

    /// Changes, without tombstones.
    pub(crate) fn rows(&self) -> u64 {
        self.events + END_MARKS
    }

    /// Changes that are deletes, each of which has a tombstone in a topic.
    pub(crate) fn deletes(&self) -> u64 {
        self.events / 10
    }

    /// Whoever filled the topic that `system` reads.
    pub(crate) fn feeder(&self, system: System) -> &Reader {
        let feeder = if system == System::Tributary { System::Tributary } else { System::DebeziumSchemas };
        let found = self.readers.iter().find(|reader| reader.system == feeder);
        found.expect("what a system reads is among those who catch up")
    }

    /// Takes away what later measurements should not meet.
    pub(crate) async fn clear(&self, stage: &Stage) -> Result<(), Error> {
        for reader in self.readers.iter().filter(|reader| reader.is_kept) {
            stage.topic(&reader.name).delete().await?;
        }
        Ok(())
    }
}

/// Whether a sink reads this system's topic.
fn feeds(system: System) -> bool {
    matches!(system, System::Tributary | System::DebeziumSchemas)
}

/// Has tributary make its slot and its first state on the empty table, and go again: as if it had stopped before the load.
async fn register(stage: &Stage, prefix: &str) -> Result<(), Error> {
    stage.topic(prefix).create(Stamp::Broker).await?;
    let mut source: Tributary = stage.tributary(Part::Source, prefix, "rdb")?;
    source.ready(Duration::from_secs(60)).await?;
    source.stop().await
}
