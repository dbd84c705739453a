//! A trial of the source: writers, what befalls it, and what must hold of each change in the end.

use std::time::{Duration, Instant};

use rand::Rng;

use super::plan::{Fault, Meanwhile, Plan, Survivor};
use super::stage::{self, Stage, WELL_WITHIN, database};
use super::{Lane, Verdict};
use crate::Error;
use crate::oracle::{audit, journal};
use crate::process::{Part, Tributary};
use crate::proxy::Way;
use crate::table::Table;
use crate::workload::{self, Manner, Pace, Workload};

/// Rows of each table before anything else.
const ROWS: u32 = 100;
/// Small chunks, so that a load has many boundaries.
const CHUNK_ROWS: i64 = 20;

/// Runs the trial of a seed.
pub(super) async fn run(lane: &mut Lane, seed: u64) -> Result<Verdict, Error> {
    let (began, plan) = (Instant::now(), Plan::draw(seed));
    let outcome = if plan.has_promotion() {
        let mut pair = Lane::start_pair().await?;
        let outcome = Trial::run(&mut pair, seed, &plan).await;
        pair.stop().await?;
        outcome
    } else {
        Trial::run(lane, seed, &plan).await
    };
    let (unreached, fault) = outcome.map_or_else(|fault| (0, Some(fault)), |unreached| (unreached, None));
    let remarks = if unreached > 0 { format!("{unreached} points not reached") } else { String::new() };
    Ok(Verdict { seed, plan: plan.to_string(), remarks, lasted: began.elapsed(), fault })
}

struct Trial<'l> {
    stage: Stage<'l>,
    /// How many processes there were beside the first.
    successors: u32,
    /// All tables, of which the last joins the others on the way, or never.
    all: Vec<Table>,
}

impl Trial<'_> {
    async fn run(lane: &mut Lane, seed: u64, plan: &Plan) -> Result<u32, String> {
        let told = |fault: Error| format!("{fault:?}");
        let shapes = workload::all();
        let prefix = format!("faults_{seed}_{:04x}", rand::rng().random::<u16>());
        let all = workload::tables();
        let client = stage::lay_out(lane, &prefix, &all).await.map_err(told)?;
        journal::keep(&client, &all).await?;
        let audit = audit_slot(&prefix);
        match lane.standby() {
            Some(standby) => audit::start_with(&client, standby, &audit).await?,
            None => audit::start(&client, &audit).await?,
        }
        workload::fill(&client, seed, &shapes, ROWS).await.map_err(told)?;
        let listed = &all[..all.len() - 1];
        let mut configuration = stage::configuration(lane, &prefix, listed);
        configuration.set("source.chunk_rows_max", CHUNK_ROWS).set("source.failover", lane.standby().is_some());
        let manner = Manner { truncate: true, move_alone: true, persist: true };
        let pace = Pace { writers: 3, transactions_per_second: 30 };
        let writers = Workload::start_in(manner, &lane.postgres(), &database(&prefix), seed, pace, &shapes);
        let tables = if plan.has_latecomer() { all.clone() } else { listed.to_vec() };
        let stage = Stage::start(lane, prefix, tables, configuration).map_err(told)?;
        let mut trial = Trial { stage, successors: 0, all };
        let outcome = trial.befall(plan, writers).await;
        outcome.map_err(|fault| trial.stage.failed(&fault))?;
        trial.stage.clean_up().await.map_err(told)?;
        Ok(trial.stage.unreached)
    }

    async fn befall(&mut self, plan: &Plan, writers: Workload) -> Result<(), String> {
        let told = |fault: Error| format!("{fault:?}");
        for (fault, pause_ms) in &plan.0 {
            self.stage.lives()?;
            self.suffer(*fault).await.map_err(told)?;
            tokio::time::sleep(Duration::from_millis(u64::from(*pause_ms))).await;
        }
        self.stage.lives()?;
        self.stage.disarm().await.map_err(told)?;
        writers.stop().await.map_err(told)?;
        self.stage.source.ready(WELL_WITHIN).await.map_err(told)?;
        self.stage.loaded().await.map_err(told)?;
        self.stage.caught_up().await.map_err(told)?;
        self.check().await?;
        self.stage.source.stop().await.map_err(told)?;
        let successors = (1..=self.successors).map(|n| format!("successor-{n}"));
        successors.chain(["source".to_owned()]).try_for_each(|name| self.stage.log_is_sound(&name))
    }

    async fn suffer(&mut self, fault: Fault) -> Result<(), Error> {
        let stage = &mut self.stage;
        match fault {
            Fault::DiesAt(point, time) => stage.dies_at(point, time).await?,
            Fault::FailsAt(point, time) => {
                stage.source.kill9().await?;
                stage.start_anew(Some(format!("{point}=error@{time}")))?;
            }
            Fault::WaitsAt(point, ms) => {
                stage.source.kill9().await?;
                stage.start_anew(Some(format!("{point}=delay:{ms}")))?;
            }
            Fault::Killed => {
                stage.source.kill9().await?;
                stage.start_anew(None)?;
            }
            Fault::Network(side, way, ms) => {
                stage.lane.set(side, way);
                tokio::time::sleep(Duration::from_millis(u64::from(ms))).await;
                stage.lane.set(side, Way::Open);
            }
            Fault::KilledWhile(side, way, ms) => {
                stage.lane.set(side, way);
                tokio::time::sleep(Duration::from_millis(u64::from(ms))).await;
                stage.source.kill9().await?;
                stage.lane.set(side, Way::Open);
                stage.start_anew(None)?;
            }
            Fault::Broker(manner) => stage.lane.lose_broker(manner).await?,
            Fault::Server(manner) => stage.lane.lose_server(manner).await?,
            Fault::FailOver(meanwhile) => {
                // Whoever is promoted must have the slot.
                stage.source.ready(WELL_WITHIN).await?;
                if let Some(standby) = stage.lane.standby() {
                    standby.until_synced(&stage::slot(&stage.prefix)).await?;
                }
                if meanwhile == Meanwhile::IsDead {
                    stage.source.kill9().await?;
                }
                stage.lane.fail_over().await?;
                if meanwhile == Meanwhile::IsDead {
                    stage.start_anew(None)?;
                }
            }
            Fault::Zombie(survivor) => self.zombie(survivor).await?,
            Fault::List(point) => {
                stage.configuration.set("source.tables", stage::names(&self.all));
                stage.dies_at(point, 1).await?;
            }
        }
        Ok(())
    }

    /// One sleeps while another takes over, and wakes beside it.
    async fn zombie(&mut self, survivor: Survivor) -> Result<(), Error> {
        let stage = &mut self.stage;
        stage.source.ready(WELL_WITHIN).await?;
        stage.source.freeze();
        self.successors += 1;
        let name = format!("successor-{}", self.successors);
        let mut successor = Tributary::start(&name, Part::Source, stage.configuration.clone(), &stage.folder)?;
        successor.ready(WELL_WITHIN).await?;
        stage.source.thaw();
        // Long enough for it to do whatever it was about to do.
        tokio::time::sleep(Duration::from_millis(500)).await;
        match survivor {
            Survivor::Zombie => successor.kill9().await,
            Survivor::Successor => {
                stage.source.kill9().await?;
                stage.source = successor;
                stage.armed = false;
                Ok(())
            }
        }
    }

    async fn check(&self) -> Result<(), String> {
        let stage = &self.stage;
        let client = stage.client().await.map_err(|fault| format!("{fault:?}"))?;
        let (audited, slot) = (audit_slot(&stage.prefix), stage::slot(&stage.prefix));
        let history = audit::history(&client, &audited, &slot).await?;
        for table in &stage.tables {
            let judged = super::judge(&client, table, &history, &stage.topic(table).await?).await;
            judged.map_err(|fault| format!("the topic of {}: {fault}", table.name))?;
        }
        Ok(())
    }
}

fn audit_slot(prefix: &str) -> String {
    format!("{prefix}_audit")
}
