//! Who reads what next: what of each load is left, and which piece of it is in whose hands.
//!
//!     task ─▶ pieces ──claim──▶ held ──split──▶ the rest is free again
//!               ▲                │ └──done──▶ gone
//!               └── given back ──┘
//!
//! Pure: no clock, no socket. The pool is its only owner. Keys are texts whose order it does not know: pieces lie in key order
//! because they were cut in place.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use schemas::TableName;
use schemas::state::Range;

use super::{KEYS_MAX, Target, Task, Work};
use crate::range;
use crate::window::Part;

/// A table that cannot be read now is tried again after this long, and twice as long each time …
const ASIDE: Duration = Duration::from_secs(1);
/// … up to this.
const ASIDE_MAX: Duration = Duration::from_secs(30);

/// A task, as long as the plan has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(u64);

/// A piece of a task in a reader's hands. One that the plan has forgotten, since its load was given up, means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    job: JobId,
    piece: u64,
}

/// What a reader is to read.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The piece.
    pub claim: Claim,
    /// Its table.
    pub table: Target,
    /// The load that it is read for.
    pub load: Option<String>,
    /// How often that had been ordered before.
    pub round: u32,
    /// What the load has done, where its order has to be asked for before anything is read: [`Plan::ordered`].
    pub unordered: Option<Vec<Range>>,
    /// What to read. It need not be read whole.
    pub part: Part,
    /// How many rows are thought to lie in it, where anything is known of that.
    pub rows: Option<u64>,
}

/// A task before anything of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It may be read.
    Ready,
    /// It waits for [`Plan::ready`].
    Waiting,
    /// It cannot be read now: not before this.
    Aside(Instant),
}

/// A task that has come to its end.
#[derive(Debug)]
pub struct Finished {
    /// Its table.
    pub table: TableName,
    /// Rows that were published, in this life and before.
    pub rows: u64,
    /// When it was taken up.
    pub begun: Instant,
    /// Whether a whole table was loaded.
    pub is_load: bool,
}

/// How far all loads are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Far {
    /// Tables that are not done.
    pub tables: usize,
    /// Rows published of them.
    pub rows: u64,
    /// Rows that they are thought to hold.
    pub rows_estimated: u64,
}

struct Piece {
    id: u64,
    part: Part,
    rows: Option<u64>,
    is_held: bool,
}

struct Job {
    id: JobId,
    table: Target,
    load: Option<String>,
    round: u32,
    /// A whole table, or single rows.
    is_load: bool,
    /// What is done, while its order is not known.
    unordered: Option<Vec<Range>>,
    /// In key order. What is done is gone.
    pieces: Vec<Piece>,
    readiness: Readiness,
    /// How long it is put aside the next time.
    aside: Duration,
    rows: u64,
    rows_estimated: u64,
    begun: Instant,
    /// When it last had its turn, counted.
    served: u64,
}

/// All tasks that are not done.
pub struct Plan {
    jobs: Vec<Job>,
    /// How many tables are read in turn.
    abreast: usize,
    last_id: u64,
    turns: u64,
}

impl Job {
    /// What is left of it, where the order of what is done is certain.
    fn cut(&mut self, done: &[Range], next_id: &mut u64) {
        let free = |range| Piece { id: fresh(next_id), part: Part::Range(range), rows: None, is_held: false };
        self.pieces = range::gaps(done).into_iter().map(free).collect();
    }

    /// All that is left is one piece, until somebody knows in which order it lies.
    fn put_off(&mut self, done: Vec<Range>, next_id: &mut u64) {
        let part = Part::Range(Range::default());
        self.pieces = vec![Piece { id: fresh(next_id), part, rows: None, is_held: false }];
        self.unordered = Some(done);
    }

    /// What is thought to be left, for a job that is one piece still.
    fn rows_left(&self) -> Option<u64> {
        let left = self.rows_estimated.saturating_sub(self.rows);
        (self.is_load && self.pieces.len() == 1 && left > 0).then_some(left)
    }

    fn has_free(&self) -> bool {
        self.pieces.iter().any(|piece| !piece.is_held)
    }
}

fn fresh(last: &mut u64) -> u64 {
    *last += 1;
    *last
}

impl Plan {
    /// Nothing to do yet. Of all tables that can be read, so many are read in turn.
    pub fn new(abreast: usize) -> Plan {
        Plan { jobs: Vec::new(), abreast: abreast.max(1), last_id: 0, turns: 0 }
    }

    /// One more task. Single rows come before tables. One that waits does so until [`Plan::ready`].
    pub fn add(&mut self, task: Task, readiness: Readiness, now: Instant) -> JobId {
        let id = JobId(fresh(&mut self.last_id));
        let Task { oid, name, round, work } = task;
        let mut job = Job {
            id,
            table: Target { oid, name, ranges_of: None, done_of: None, is_bounded: false },
            load: work.load().map(str::to_owned),
            round,
            is_load: matches!(work, Work::Load { .. }),
            unordered: None,
            pieces: Vec::new(),
            readiness,
            aside: ASIDE,
            rows: 0,
            rows_estimated: 0,
            begun: now,
            served: 0,
        };
        let before = match work {
            Work::Load { done, .. } => {
                (job.rows, job.rows_estimated) = (done.rows, done.rows_estimated);
                job.table.is_bounded = done.ranges_of.is_none() && !done.done.is_empty();
                job.table.ranges_of.clone_from(&done.ranges_of);
                job.table.done_of = done.ranges_of;
                match range::is_ordered(&done.done) {
                    true => job.cut(&done.done, &mut self.last_id),
                    false => job.put_off(done.done, &mut self.last_id),
                }
                self.jobs.len()
            }
            Work::Keys { load, keys } => {
                let parts = match load {
                    None => keys.chunks(KEYS_MAX).map(|keys| Part::Keys(keys.to_vec())).collect(),
                    // Which of them are read together, the server says.
                    Some(_) => vec![Part::List { keys, void: Vec::new(), rows: Vec::new() }],
                };
                let piece = |part| Piece { id: fresh(&mut self.last_id), part, rows: None, is_held: false };
                job.pieces = parts.into_iter().map(piece).collect();
                self.jobs.iter().take_while(|job| !job.is_load).count()
            }
        };
        if !job.pieces.is_empty() {
            self.jobs.insert(before, job);
        }
        id
    }

    /// A task may be read from now on.
    pub fn ready(&mut self, id: JobId) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
            job.readiness = Readiness::Ready;
        }
    }

    /// The claim was to put in order what its load has done.
    pub fn ordered(&mut self, claim: Claim, done: &[Range]) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == claim.job) {
            job.unordered = None;
            job.cut(done, &mut self.last_id);
        }
    }

    /// The claim's table is told into ranges by something else: all of it is to be read, whoever holds what of it.
    pub fn anew(&mut self, claim: Claim, found: &str) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == claim.job)
            && job.table.ranges_of.as_deref() != Some(found)
        {
            job.table.ranges_of = Some(found.to_owned());
            (job.unordered, job.table.is_bounded) = (None, false);
            job.cut(&[], &mut self.last_id);
        }
    }

    /// What the load has done is told into ranges by this, and not by what was thought: so the claim's did not count.
    pub fn elsewhere(&mut self, claim: Claim, done_of: Option<String>) {
        if let Some((job, _)) = self.find(claim) {
            job.table.done_of = done_of;
        }
        self.again(claim);
    }

    /// What to read next: of the first few tables that have something free, the one that waited longest.
    pub fn next(&mut self, now: Instant) -> Option<Claimed> {
        let is_ready = |job: &&mut Job| match job.readiness {
            Readiness::Ready => job.has_free(),
            Readiness::Aside(until) => until <= now && job.has_free(),
            Readiness::Waiting => false,
        };
        let abreast = self.jobs.iter_mut().filter(is_ready).take(self.abreast);
        let job = abreast.min_by_key(|job| job.served)?;
        job.readiness = Readiness::Ready;
        self.turns += 1;
        job.served = self.turns;
        let rows_left = job.rows_left();
        let piece = job.pieces.iter_mut().find(|piece| !piece.is_held)?;
        piece.is_held = true;
        Some(Claimed {
            claim: Claim { job: job.id, piece: piece.id },
            table: job.table.clone(),
            load: job.load.clone(),
            round: job.round,
            unordered: job.unordered.clone(),
            part: piece.part.clone(),
            rows: piece.rows.or(rows_left),
        })
    }

    /// So much of a claim was read: the rest is free. `found` is what its range is a range of.
    pub fn covered(&mut self, claim: Claim, part: &Part, rows: u64, found: Option<&str>) {
        if let Some((job, _)) = self.find(claim) {
            job.table.ranges_of = job.table.ranges_of.take().or(found.map(str::to_owned));
        }
        match part {
            Part::Range(Range { upto: Some(upto), .. }) => self.split(claim, upto, Some(rows)),
            Part::Range(_) | Part::Keys(_) => {}
            Part::List { keys, void, .. } => self.leave(claim, keys, void),
        }
    }

    /// Of a list these are read, or can name no row.
    fn leave(&mut self, claim: Claim, read: &[String], lost: &[String]) {
        let id = fresh(&mut self.last_id);
        let Some((job, place)) = self.find(claim) else { return };
        let Part::List { keys, void, .. } = &mut job.pieces[place].part else { return };
        let taken: HashSet<&String> = read.iter().chain(lost).collect();
        let left: Vec<String> = keys.iter().filter(|key| !taken.contains(key)).cloned().collect();
        (*keys, *void) = (read.to_vec(), lost.to_vec());
        if !left.is_empty() {
            let part = Part::List { keys: left, void: Vec::new(), rows: Vec::new() };
            job.pieces.insert(place + 1, Piece { id, part, rows: None, is_held: false });
        }
    }

    /// A claim ends at this key: what lies behind it is free. It is the same whether the reader knows before it reads or
    /// after.
    pub fn split(&mut self, claim: Claim, at: &[String], rows: Option<u64>) {
        let id = fresh(&mut self.last_id);
        let Some((job, place)) = self.find(claim) else { return };
        let piece = &mut job.pieces[place];
        piece.rows = rows.or(piece.rows);
        let Part::Range(range) = &mut piece.part else { return };
        if range.upto.as_deref() == Some(at) {
            return;
        }
        let upto = range.upto.replace(at.to_vec());
        let rest = Range { after: Some(at.to_vec()), upto };
        job.pieces.insert(place + 1, Piece { id, part: Part::Range(rest), rows: None, is_held: false });
        job.join(place + 1);
    }

    /// A claim is published. Tells of the task when this was the last of it.
    pub fn done(&mut self, claim: Claim, rows: u64, found: Option<&str>) -> Option<Finished> {
        let (job, place) = self.find(claim)?;
        if let Some(found) = found {
            job.table.done_of = Some(found.to_owned());
        }
        job.pieces.remove(place);
        job.rows += rows;
        job.aside = ASIDE;
        if !job.pieces.is_empty() {
            return None;
        }
        let finished =
            Finished { table: job.table.name.clone(), rows: job.rows, begun: job.begun, is_load: job.is_load };
        self.jobs.retain(|job| job.id != claim.job);
        Some(finished)
    }

    /// A claim has to be read again, by whoever comes next.
    pub fn again(&mut self, claim: Claim) {
        if let Some((job, place)) = self.find(claim) {
            let piece = &mut job.pieces[place];
            piece.is_held = false;
            // What can name a row is found out anew.
            if let Part::List { keys, void, .. } = &mut piece.part {
                keys.append(void);
            }
            job.join(place);
        }
    }

    /// A claim's rows by their keys were more than a chunk takes: it comes again as two.
    pub fn halve(&mut self, claim: Claim) {
        let id = fresh(&mut self.last_id);
        let Some((job, place)) = self.find(claim) else { return };
        let piece = &mut job.pieces[place];
        piece.is_held = false;
        if let Part::Keys(keys) = &mut piece.part {
            let part = Part::Keys(keys.split_off(keys.len() / 2));
            job.pieces.insert(place + 1, Piece { id, part, rows: None, is_held: false });
        }
    }

    /// A claim's table cannot be read now. The others go on; it comes again later.
    pub fn aside(&mut self, claim: Claim, now: Instant) {
        self.again(claim);
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == claim.job) {
            job.readiness = Readiness::Aside(now + job.aside);
            job.aside = (job.aside * 2).min(ASIDE_MAX);
        }
    }

    /// Nothing of a claim's task is read any more. Its table, and whether that was being loaded, if the plan had it still.
    pub fn forget(&mut self, claim: Claim) -> Option<(TableName, bool)> {
        let place = self.jobs.iter().position(|job| job.id == claim.job)?;
        let job = self.jobs.remove(place);
        Some((job.table.name, job.is_load))
    }

    /// A load is given up.
    pub fn cancel(&mut self, load: &str) {
        self.jobs.retain(|job| job.load.as_deref() != Some(load));
    }

    /// Whether somebody still wants what a claim reads.
    pub fn wants(&self, claim: Claim) -> bool {
        let of_job = self.jobs.iter().find(|job| job.id == claim.job);
        of_job.is_some_and(|job| job.pieces.iter().any(|piece| piece.id == claim.piece))
    }

    /// Whether everything is done.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// When something that was put aside comes again.
    pub fn wakes_at(&self) -> Option<Instant> {
        let wakes = |job: &Job| match job.readiness {
            Readiness::Aside(until) if job.has_free() => Some(until),
            Readiness::Aside(_) | Readiness::Ready | Readiness::Waiting => None,
        };
        self.jobs.iter().filter_map(wakes).min()
    }

    /// How far all loads are.
    pub fn far(&self) -> Far {
        self.jobs.iter().filter(|job| job.is_load).fold(Far::default(), |far, job| Far {
            tables: far.tables + 1,
            rows: far.rows + job.rows,
            // An estimate that was passed is none any more.
            rows_estimated: far.rows_estimated + job.rows_estimated.max(job.rows),
        })
    }

    fn find(&mut self, claim: Claim) -> Option<(&mut Job, usize)> {
        let job = self.jobs.iter_mut().find(|job| job.id == claim.job)?;
        let place = job.pieces.iter().position(|piece| piece.id == claim.piece)?;
        Some((job, place))
    }
}

impl Job {
    /// Joins a free piece with the free ones that it touches.
    fn join(&mut self, place: usize) {
        let mut first = place;
        while first > 0 && self.touch(first - 1) {
            first -= 1;
        }
        while self.touch(first) {
            let above = self.pieces.remove(first + 1);
            let below = &mut self.pieces[first];
            below.rows = below.rows.zip(above.rows).map(|(below, above)| below + above);
            if let (Part::Range(below), Part::Range(above)) = (&mut below.part, above.part) {
                below.upto = above.upto;
            }
        }
    }

    /// Whether a piece and the next one are both free, and one begins where the other ends.
    fn touch(&self, place: usize) -> bool {
        match (self.pieces.get(place), self.pieces.get(place + 1)) {
            (Some(below), Some(above)) if !below.is_held && !above.is_held => match (&below.part, &above.part) {
                (Part::Range(below), Part::Range(above)) => below.upto.is_some() && below.upto == above.after,
                _ => false,
            },
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
