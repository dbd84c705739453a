//! A trial of the snapshot: tables are copied while they are written to, the source dies again and again, and the topics are
//! compared with the tables at many places on the way.
//!
//!     writers ─▶ tables ─▶ source ─▶ topics ──────────────┐
//!     company ─▶   ▲         ▲ dies                       ├─▶ at each cut: the fold up to there is the table
//!                  └─ cuts: a slot's place and snapshot ──┘

mod company;
pub mod plan;

use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::stage::{self, Stage, WELL_WITHIN, database};
use super::{Lane, Verdict};
use crate::Error;
use crate::oracle::cut::{self, Compared, Cut};
use crate::oracle::tables;
use crate::servers::PostgresAddress;
use crate::table::Table;
use crate::workload::{self, Manner, Pace, Totals, Workload};

use company::Company;
use plan::{Death, Plan};

/// Rows of each table before anything else.
const ROWS: u32 = 200;
/// At how many places a trial is compared at least.
const CUTS_MIN: usize = 10;
/// Who writes.
const WRITERS: u64 = 4;

/// How much a trial does.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How often the source dies at most.
    pub deaths_max: usize,
    /// Transactions a second of all writers together, or what the machine allows of them.
    pub transactions_per_second: u32,
}

/// Runs the trial of a seed.
pub(super) async fn run(lane: &mut Lane, seed: u64, scale: Scale) -> Verdict {
    let (began, plan) = (Instant::now(), Plan::draw(seed, scale.deaths_max));
    let outcome = trial(lane, seed, &plan, scale).await;
    let (remarks, fault) = outcome.map_or_else(|fault| (String::new(), Some(fault)), |remarks| (remarks, None));
    Verdict { seed, plan: plan.to_string(), remarks, lasted: began.elapsed(), fault }
}

async fn trial(lane: &mut Lane, seed: u64, plan: &Plan, scale: Scale) -> Result<String, String> {
    let told = |fault: Error| format!("{fault:?}");
    let (shapes, all) = (workload::all(), workload::tables());
    let prefix = format!("snapshot_{seed}_{:04x}", rand::rng().random::<u16>());
    let client = stage::lay_out(lane, &prefix, &all).await.map_err(told)?;
    workload::fill(&client, seed, &shapes, ROWS).await.map_err(told)?;
    let mut configuration = stage::configuration(lane, &prefix, &all);
    configuration.set("source.chunk_rows_max", plan.chunk_rows).set("source.snapshot_readers", plan.readers);
    configuration.set("source.on_rewrite", "reload");
    let company = Company::gather(lane, &prefix, seed, plan.company).await.map_err(told)?;
    let manner = Manner { truncate: true, move_alone: true, persist: false };
    let pace =
        Pace { writers: WRITERS, transactions_per_second: (scale.transactions_per_second / WRITERS as u32).max(1) };
    let began = Instant::now();
    let writers = Workload::start_in(manner, &lane.postgres(), &database(&prefix), seed, pace, &shapes);
    let cutter = Cutter::start(lane.postgres(), &prefix, seed, &all);
    let mut stage = Stage::start(lane, prefix, all, configuration).map_err(told)?;
    let outcome = befall(&mut stage, plan, Work { company, writers, cutter, began }).await;
    let told_of = outcome.map_err(|fault| stage.failed(&fault))?;
    let unreached = stage.unreached;
    stage.clean_up().await.map_err(told)?;
    let unreached = if unreached > 0 { format!(", {unreached} points not reached") } else { String::new() };
    Ok(format!("{told_of}{unreached}"))
}

/// Everybody who is at work beside the source.
struct Work {
    company: Company,
    writers: Workload,
    cutter: Cutter,
    began: Instant,
}

async fn befall(stage: &mut Stage<'_>, plan: &Plan, work: Work) -> Result<String, String> {
    let told = |fault: Error| format!("{fault:?}");
    for death in &plan.deaths {
        stage.lives()?;
        match *death {
            Death::At(point, time) => stage.dies_at(point, time).await.map_err(told)?,
            Death::After(ms) => {
                tokio::time::sleep(Duration::from_millis(u64::from(ms))).await;
                stage.source.kill9().await.map_err(told)?;
                stage.start_anew(None).map_err(told)?;
            }
        }
    }
    stage.source.ready(WELL_WITHIN).await.map_err(told)?;
    stage.loaded().await.map_err(told)?;
    let Work { company, writers, cutter, began } = work;
    let cuts = cutter.stop().await.map_err(told)?;
    let rewrites = company.part(stage.lane).await.map_err(told)?;
    let Totals { committed, .. } = writers.stop().await.map_err(told)?;
    let rate = committed as f64 / began.elapsed().as_secs_f64();
    // A shape that nobody has written a row in has not been seen yet.
    let (client, mut random) = (stage.client().await.map_err(told)?, ChaCha8Rng::seed_from_u64(plan.chunk_rows as u64));
    for shape in workload::all() {
        client.batch_execute(&shape.upsert(&mut random)).await.map_err(|cause| cause.to_string())?;
    }
    stage.caught_up().await.map_err(told)?;
    stage.loaded().await.map_err(told)?;
    stage.caught_up().await.map_err(told)?;
    let compared = check(stage, &cuts, &rewrites).await?;
    stage.source.stop().await.map_err(told)?;
    stage.log_is_sound("source")?;
    let Compared { whole, loading, left_out } = compared;
    Ok(format!(
        "{committed} transactions, {rate:.0}/s; {} cuts with {whole} tables loaded, {loading} being loaded, {left_out} left out",
        cuts.len()
    ))
}

/// In the end each topic is sound and folds to its table, and at each cut it did.
async fn check(stage: &Stage<'_>, cuts: &[Cut], rewrites: &company::Rewrites) -> Result<Compared, String> {
    let client = stage.client().await.map_err(|fault| format!("{fault:?}"))?;
    let mut compared = Compared::default();
    for (which, table) in stage.tables.iter().enumerate() {
        let records = stage.topic(table).await?;
        let of_topic = |fault: String| format!("the topic of {}: {fault}", table.name);
        records.check().map_err(of_topic)?;
        let rows = records.fold().map_err(of_topic)?;
        tables::compare_rows(&client, table, &rows).await.map_err(of_topic)?;
        let of_table = rewrites.get(&table.name).map(Vec::as_slice).unwrap_or_default();
        compared += cut::compare(cuts, which, table, of_table, &records).map_err(of_topic)?;
    }
    if cuts.len() < CUTS_MIN || compared.whole == 0 {
        return Err(format!("{} cuts were taken, and {compared:?}: too few to prove anything", cuts.len()));
    }
    Ok(compared)
}

/// Takes cuts from the first moment on, one after the other, until it is stopped and has enough.
struct Cutter {
    stop: CancellationToken,
    cuts: JoinHandle<Result<Vec<Cut>, Error>>,
}

impl Cutter {
    fn start(server: PostgresAddress, prefix: &str, seed: u64, tables: &[Table]) -> Cutter {
        let stop = CancellationToken::new();
        let (stopping, prefix, tables) = (stop.clone(), prefix.to_owned(), tables.to_vec());
        let cuts = tokio::spawn(async move {
            let (mut cuts, mut random) = (Vec::new(), ChaCha8Rng::seed_from_u64(seed ^ 0x6375_7473));
            // The last ones are taken when all is loaded and while all are still at work.
            let (mut behind, mut tries) = (0, 0);
            while cuts.len() < CUTS_MIN || behind < 2 {
                // A slot goes a moment after its session.
                let slot = format!("{prefix}_cut_{tries}");
                tries += 1;
                let Some(cut) = Cut::take(&server, &database(&prefix), &slot, &tables).await? else { continue };
                cuts.push(cut);
                behind += usize::from(stopping.is_cancelled());
                let pause = Duration::from_millis(random.random_range(100..1_500));
                stopping.run_until_cancelled(tokio::time::sleep(pause)).await;
            }
            Ok(cuts)
        });
        Cutter { stop, cuts }
    }

    async fn stop(self) -> Result<Vec<Cut>, Error> {
        self.stop.cancel();
        self.cuts.await.map_err(Error::during("wait for the cuts"))?
    }
}
