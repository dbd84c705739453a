//! Who reads what, and when: orders become tasks, tasks become claims, and claims go to readers.
//!
//!     orders ─▶ plan ──claims──▶ readers ──chunks──▶ markers, one after the other ──▶ published, or back to the plan
//!
//! One loop, which owns the plan. Waiting and I/O only: it knows nothing of what becomes of a chunk's rows. It connects when
//! there is something to read, and lets the connections go when there is nothing.

use std::future::pending;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use metrics::gauge;
use postgres::Client;
use schemas::TableName;
use schemas::state::Hindrance;
use service::failpoint;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{OnceCell, Semaphore};

use super::pace::{Pace, Rate};
use super::plan::{Claim, Claimed, JobId, Plan, Readiness};
use super::progress::{self, Progress, TELL_EVERY};
use super::reader::{Attempt, Filled, Reader, Split, Tools};
use super::shape::Shapes;
use super::strain::Strain;
use super::{Order, Settings, Task, Work};
use crate::allowance::Allowance;
use crate::catalog::Messages;
use crate::feed::{Outcome, marker};
use crate::session::{Input, Verdict};
use crate::window::Part;
use crate::{Error, lockers};

/// A marker follows the one before when that has come along, or at the latest after this: where the stream is behind, chunks
/// wait in it and not before it, and other changes stand between them.
const MARKERS_APART: Duration = Duration::from_millis(100);
/// As long as nobody else writes, so many may be on their way at once: the stream need not wait for the next one.
const TURNS: usize = 2;
/// For each reader, so many chunks may wait in the stream: others' changes stand behind all of them, and the smaller the
/// chunks are, the less their memory holds them back.
const WAITING_EACH: usize = 4;
/// How often it is looked whether the server has enough to bear. PostgreSQL tells nobody.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The reading of a single row takes longer than a statement may.
const NOT_A_ROW: &str = "not even a single row can be read";

/// A claim with what its reader was asked.
struct Given {
    claimed: Claimed,
    rows_max: usize,
}

/// A chunk that came along in the stream.
struct Met {
    claim: Claim,
    table: (u32, TableName),
    /// How many rows were looked at for it.
    searched: usize,
    /// What its range is a range of.
    found: Option<String>,
    verdict: Verdict,
}

type Busy = BoxFuture<'static, (Reader, Given, Result<Attempt, Error>)>;

/// Has tables read as ordered.
pub struct Pool {
    orders: UnboundedReceiver<Order>,
    splits: UnboundedReceiver<Split>,
    tools: Tools,
    plan: Plan,
    pace: Pace,
    rate: Rate,
    progress: Progress,
    begun: Instant,
    /// How many lists may be told of whose keys name no row.
    voids: Allowance,
    /// What the last look at the server showed; none before the first.
    server: Option<Strain>,
    messages: Arc<OnceCell<Messages>>,
    control: Arc<OnceCell<Client>>,
    /// Who may write a marker now.
    turns: Arc<Semaphore>,
    idle: Vec<Reader>,
    busy: FuturesUnordered<Busy>,
    open: FuturesUnordered<BoxFuture<'static, Result<Met, Error>>>,
    waiting: FuturesUnordered<BoxFuture<'static, Result<JobId, Error>>>,
    looks: FuturesUnordered<BoxFuture<'static, Result<Strain, Error>>>,
}

impl Pool {
    /// A pool that has nothing to do yet.
    pub fn new(orders: UnboundedReceiver<Order>, inputs: Sender<Input>, settings: Settings) -> Pool {
        progress::describe();
        let (splits_to, splits) = unbounded_channel();
        // Each reader may hold a chunk, and as many as that may be on their way.
        let room = settings.chunk_bytes_max.saturating_mul(2 * settings.readers).min(Semaphore::MAX_PERMITS);
        let rows_max = match settings.rows_per_second_max {
            0 => settings.chunk_rows_max,
            most => settings.chunk_rows_max.min(usize::try_from(most).unwrap_or(usize::MAX)),
        };
        Pool {
            orders,
            splits,
            plan: Plan::new(settings.readers),
            pace: Pace::new(settings.chunk_bytes_max, rows_max),
            rate: Rate::new(settings.rows_per_second_max),
            progress: Progress::new(Instant::now()),
            begun: Instant::now(),
            voids: Allowance::default(),
            server: None,
            messages: Arc::default(),
            control: Arc::default(),
            turns: Arc::new(Semaphore::new(TURNS)),
            idle: Vec::new(),
            busy: FuturesUnordered::new(),
            open: FuturesUnordered::new(),
            waiting: FuturesUnordered::new(),
            looks: FuturesUnordered::new(),
            tools: Tools {
                inputs,
                shapes: Shapes::default(),
                memory: Arc::new(Semaphore::new(room)),
                splits: splits_to,
                settings,
            },
        }
    }

    /// Obeys until nobody can order anything any more.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut tell = tokio::time::interval_at(tokio::time::Instant::now() + TELL_EVERY, TELL_EVERY);
        loop {
            let wakes_at = self.hand_out();
            self.rest();
            let wake = async {
                match wakes_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return Ok(()),
                },
                Some((claim, at)) = self.splits.recv() => self.split(claim, &at),
                Some((reader, given, attempt)) = self.busy.next() => {
                    self.idle.push(reader);
                    self.attempted(&given, attempt?);
                }
                Some(met) = self.open.next() => self.met(met?),
                Some(ready) = self.waiting.next() => self.plan.ready(ready?),
                Some(strain) = self.looks.next() => self.looked(strain?),
                () = wake => {}
                _ = tell.tick() => self.progress.tell(self.plan.far(), Instant::now()),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Do(task) => self.take_up(task),
            Order::Cancel { load } => {
                self.plan.cancel(&load);
                tracing::info!(load, "a load was given up or paused");
            }
        }
    }

    fn take_up(&mut self, task: Task) {
        let (oid, table) = (task.oid, task.name.clone());
        let readiness = match &task.work {
            Work::Load { done, is_added, .. } => {
                tracing::info!(%table, rows = done.rows, of = done.rows_estimated, "loading");
                if *is_added {
                    let why = "transactions that began before it was published are waited for".to_owned();
                    self.tell(task.work.load(), oid, Hindrance { why, is_fault: false });
                }
                if *is_added { Readiness::Waiting } else { Readiness::Ready }
            }
            Work::Keys { load: None, keys } => {
                tracing::info!(%table, rows = keys.len(), "reading rows again that moved before the last stop");
                Readiness::Ready
            }
            Work::Keys { load: Some(load), keys } => {
                tracing::info!(%table, keys = keys.len(), load, "reading rows by their keys");
                Readiness::Ready
            }
        };
        let id = self.plan.add(task, readiness, Instant::now());
        if readiness == Readiness::Waiting {
            let (control, postgres) = (self.control.clone(), self.tools.settings.postgres.clone());
            self.waiting.push(Box::pin(async move {
                let client = control.get_or_try_init(|| postgres::connect(&postgres, "loads")).await?;
                lockers::wait(client, Some(&[oid]), &format!("before {table} is loaded")).await?;
                Ok(id)
            }));
        }
    }

    /// Gives every idle reader something to read, as far as that is wanted. Tells when to look again though nothing happens.
    fn hand_out(&mut self) -> Option<Instant> {
        if self.plan.is_empty() {
            return None;
        }
        if self.tools.settings.limits.any() {
            if self.looks.is_empty() {
                self.look(Duration::ZERO);
            }
            if matches!(self.server, None | Some(Strain::TooMuch(_))) {
                return None;
            }
        }
        let now = Instant::now();
        let readers = self.tools.settings.readers;
        while self.busy.len() < readers && self.open.len() < WAITING_EACH * readers {
            if let Some(free_at) = self.rate.free_at(now) {
                return Some(free_at);
            }
            let Some(claimed) = self.plan.next(now) else { return self.plan.wakes_at() };
            let rows_max = self.pace.rows(claimed.table.oid, now);
            let is_shared = readers > 1 && claimed.rows.is_none_or(|rows| rows > rows_max as u64);
            let mut reader = self.idle.pop().unwrap_or_else(|| Reader::new(self.tools.clone()));
            self.busy.push(Box::pin(async move {
                let attempt = reader.attempt(&claimed, rows_max, is_shared).await;
                (reader, Given { claimed, rows_max }, attempt)
            }));
        }
        None
    }

    /// Without anything to do for anybody, connections are let go.
    fn rest(&mut self) {
        let is_idle = self.busy.is_empty() && self.open.is_empty() && self.waiting.is_empty();
        if is_idle && self.plan.is_empty() {
            self.idle.clear();
            self.looks.clear();
            (self.messages, self.control, self.server) = (Arc::default(), Arc::default(), None);
        }
        gauge!("tributary_source_tables_loading").set(self.plan.far().tables as f64);
    }

    /// Where a claim ends is known before it is read.
    fn split(&mut self, claim: Claim, at: &[String]) {
        self.plan.split(claim, at, None);
    }

    fn attempted(&mut self, given: &Given, attempt: Attempt) {
        // What the reader said before must not be heard after what it says now.
        while let Ok((claim, at)) = self.splits.try_recv() {
            self.split(claim, &at);
        }
        let Given { claimed: Claimed { claim, table, .. }, rows_max } = given;
        match attempt {
            Attempt::Filled(filled) => self.filled(given, filled),
            Attempt::Ordered(done) => self.plan.ordered(*claim, &done),
            Attempt::Elsewhere(found) => {
                tracing::info!(table = %table.name, "the table was rewritten or has another key: its load begins anew");
                self.plan.anew(*claim, &found);
            }
            Attempt::Again(why) => {
                progress::again(&table.name, why);
                self.plan.again(*claim);
            }
            Attempt::Full => {
                progress::again(&table.name, "rows by their keys were more than a chunk takes");
                self.plan.halve(*claim);
            }
            Attempt::Refused(error) => {
                let cause = service::chain(&error);
                tracing::error!(table = %table.name, "the table cannot be read: {cause}; others are, and it is tried again");
                progress::again(&table.name, "the server refuses to read it");
                self.aside(given, Hindrance { why: format!("the table cannot be read: {cause}"), is_fault: true });
            }
            Attempt::NotNow(why) => {
                tracing::info!(table = %table.name, "the table cannot be read now: {why}; others are, and it is tried again");
                progress::again(&table.name, why);
                self.aside(given, Hindrance { why: why.to_owned(), is_fault: false });
            }
            Attempt::Stuck(why) => {
                tracing::error!(table = %table.name, "the table cannot be read: {why}; others are, and it is tried again");
                progress::again(&table.name, why);
                self.aside(given, Hindrance { why: why.to_owned(), is_fault: true });
            }
            Attempt::Slow => self.slow(given, *rows_max),
            Attempt::Dropped => self.dropped(*claim),
        }
    }

    /// What was claimed comes again later, and meanwhile the state says why.
    fn aside(&mut self, given: &Given, hindrance: Hindrance) {
        let Claimed { claim, table, load, .. } = &given.claimed;
        self.tell(load.as_deref(), table.oid, hindrance);
        self.plan.aside(*claim, Instant::now());
    }

    fn tell(&self, load: Option<&str>, oid: u32, hindrance: Hindrance) {
        if let Some(load) = load {
            // Nobody listens where the loop has ended.
            let _ = self.tools.inputs.send(Input::Hindered { load: load.to_owned(), oid, hindrance });
        }
    }

    fn filled(&mut self, given: &Given, filled: Filled) {
        let Given { claimed: Claimed { claim, table, .. }, rows_max } = given;
        if !self.plan.wants(*claim) {
            // Its load was given up, or begins anew. Nobody listens where the loop has ended.
            let _ = self.tools.inputs.send(Input::Close { id: filled.id });
            return;
        }
        let now = Instant::now();
        self.pace.read(table.oid, *rows_max, filled.searched, filled.bytes, filled.took);
        self.rate.took(filled.rows as u64, now);
        self.plan.covered(*claim, &filled.part, filled.rows as u64, filled.found.as_deref());
        if let Part::List { void, .. } = &filled.part
            && !void.is_empty()
            && self.voids.take(now.saturating_duration_since(self.begun))
        {
            tracing::warn!(table = %table.name, keys = void.len(), "keys that can name no row of the table are not answered");
        }
        let (messages, turns, settings) = (self.messages.clone(), self.turns.clone(), self.tools.settings.clone());
        let turn = if self.pace.is_alone(now) { 1 } else { TURNS as u32 };
        let (claim, table) = (*claim, (table.oid, table.name.clone()));
        self.open.push(Box::pin(async move {
            let (searched, found) = (filled.searched, filled.found.clone());
            let verdict = publish(filled, &messages, (&turns, turn), &settings).await?;
            Ok(Met { claim, table, searched, found, verdict })
        }));
    }

    fn slow(&mut self, given: &Given, rows_max: usize) {
        let Claimed { claim, table, part, .. } = &given.claimed;
        progress::again(&table.name, "reading it took too long");
        let is_single = match part {
            Part::Range(_) => !self.pace.unbearable(table.oid, rows_max),
            Part::Keys(_) | Part::List { .. } => true,
        };
        if is_single {
            tracing::error!(
                table = %table.name,
                "{NOT_A_ROW} within {} s: others go on, and it is tried again; look for what keeps the server from reading the table",
                self.tools.settings.statement_timeout.as_secs()
            );
            self.aside(given, Hindrance { why: NOT_A_ROW.to_owned(), is_fault: true });
        } else {
            tracing::warn!(table = %table.name, rows = rows_max, "a chunk took too long and is read again in halves");
            self.plan.again(*claim);
        }
    }

    fn dropped(&mut self, claim: Claim) {
        match self.plan.forget(claim) {
            Some((table, true)) => {
                tracing::warn!(%table, "the table was dropped before its load was done: the others go on without it");
            }
            Some((table, false)) => tracing::info!(%table, "the table was dropped, and its rows with it"),
            None => {}
        }
    }

    fn met(&mut self, met: Met) {
        let Met { claim, table: (oid, name), searched, found, verdict } = met;
        if !verdict.is_alone {
            self.pace.met_others(Instant::now());
        }
        learn(&mut self.pace, oid, searched, &verdict);
        match verdict.outcome {
            Outcome::Done { rows } => {
                self.progress.published(rows);
                if let Some(finished) = self.plan.done(claim, rows, found.as_deref()) {
                    self.tools.shapes.forget(oid);
                    progress::finished(&finished, Instant::now());
                }
            }
            Outcome::Again(why) => {
                progress::again(&name, why);
                self.plan.again(claim);
            }
            Outcome::Elsewhere { ranges_of } => {
                progress::again(&name, "the table was rewritten or has another key");
                self.plan.elsewhere(claim, ranges_of);
            }
        }
    }

    /// Looks at the server after a while.
    fn look(&mut self, after: Duration) {
        let (control, settings) = (self.control.clone(), self.tools.settings.clone());
        self.looks.push(Box::pin(async move {
            tokio::time::sleep(after).await;
            let client = control.get_or_try_init(|| postgres::connect(&settings.postgres, "loads")).await?;
            Ok(settings.limits.look(client).await?)
        }));
    }

    fn looked(&mut self, strain: Strain) {
        let kind = |strain: &Strain| std::mem::discriminant(strain);
        if self.server.as_ref().map(kind) != Some(kind(&strain)) {
            match &strain {
                Strain::TooMuch(why) => tracing::info!("loads wait: {why}"),
                Strain::Unseen(setting) => tracing::warn!(
                    "{setting} has no effect: our role may not see what it speaks of; GRANT pg_monitor to it, or set it to 0"
                ),
                Strain::Bearable if self.server.is_some() => tracing::info!("loads go on"),
                Strain::Bearable => {}
            }
        }
        self.server = Some(strain);
        self.look(LOOK_EVERY);
    }
}

/// What publishing costs is told by chunks that were published. Others cost next to nothing.
fn learn(pace: &mut Pace, oid: u32, searched: usize, verdict: &Verdict) {
    if let Outcome::Done { .. } = verdict.outcome {
        pace.published(oid, searched, verdict.sent_in, verdict.took);
    }
}

/// Takes a chunk to its marker and waits until it is met.
async fn publish(
    mut filled: Filled,
    messages: &OnceCell<Messages>,
    (turns, turn): (&Semaphore, u32),
    settings: &Settings,
) -> Result<Verdict, Error> {
    let turn = turns.acquire_many(turn).await.map_err(|_| Error::Stopped)?;
    // Its window may have been given up meanwhile.
    if let Ok(verdict) = filled.verdict.try_recv() {
        return Ok(verdict);
    }
    // Markers go over a connection of their own, so that they are no part of a chunk's transaction.
    let connect = || async {
        let markers = postgres::connect(&settings.postgres, "markers").await?;
        Messages::prepare(markers, &settings.messages).await
    };
    messages.get_or_try_init(connect).await?.emit(&marker(filled.id)).await?;
    failpoint::reach_in_task("chunk-marked").await?;
    let verdict = tokio::select! {
        verdict = &mut filled.verdict => Some(verdict),
        () = tokio::time::sleep(MARKERS_APART) => None,
    };
    drop(turn);
    let verdict = match verdict {
        Some(verdict) => verdict,
        None => (&mut filled.verdict).await,
    };
    // Whatever was decided, its rows are in memory no more.
    drop(filled.held);
    verdict.map_err(|_| Error::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_read_again_tells_nothing_of_what_publishing_costs() {
        let verdict = |outcome, took_ms| Verdict {
            outcome,
            sent_in: Duration::from_millis(took_ms),
            took: Duration::ZERO,
            is_alone: true,
        };
        let rows = |verdicts: &[Verdict]| {
            let mut pace = Pace::new(1 << 30, 1_000_000);
            pace.read(7, 100_000, 100_000, 1, Duration::from_millis(1));
            verdicts.iter().for_each(|verdict| learn(&mut pace, 7, 1_000, verdict));
            pace.rows(7, Instant::now())
        };
        let done = || verdict(Outcome::Done { rows: 1_000 }, 60);
        assert_eq!(rows(&[done()]), 1_000);
        assert_eq!(rows(&[done(), verdict(Outcome::Again("not visible"), 0)]), 1_000);
        assert_eq!(rows(&[done(), verdict(Outcome::Elsewhere { ranges_of: None }, 0)]), 1_000);
    }
}
