//! A session of the model: the real feed between a walsender and a broker, with the loop around it told again in small steps.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use schemas::Lsn;
use schemas::event::LoadMode;

use super::broker::{self, Batch, Commit};
use super::edges::{Open, Server, View, parts, send_commit};
use super::process::{Belongs, End};
use super::reader::Reader;
use super::relist::Relist;
use super::server::{Frame, Transaction, Uid, snapshot};
use super::wire::TABLES;
use super::world::{Broken, Outside};
use super::{Rule, windows};
use crate::feed::{Feed, Label, Taken, Urgency};
use crate::history::{Check, Mismatch};
use crate::state::State;
use crate::visibility::Snapshot;
use crate::{Error, pgoutput};

/// A history of this length meets its end even in a short run.
const HISTORY: usize = 3;
/// A snapshot for which everything is over.
const ALL: u32 = 1_000_000;

pub(super) struct Streaming {
    pub(super) feed: Feed,
    pub(super) belongs: Belongs,
    lineage: Rc<RefCell<BTreeSet<Uid>>>,
    view: Arc<Mutex<Option<View>>>,
    /// What was received and not yet fed.
    frames: VecDeque<Frame>,
    pub(super) batch: Batch,
    /// What this session has in a committed state record, and what of that it may report.
    committed: Lsn,
    allowed: Lsn,
    observed: Option<Snapshot>,
    pub(super) readers: Vec<Reader>,
    /// Rows to be read again, by table and key.
    pub(super) moved: Vec<(u32, String)>,
    /// The way to another list of tables, until its message is written.
    pub(super) list: Option<Relist>,
    /// By load: who has written to its table since before this session, and not ended.
    pub(super) awaited: BTreeMap<String, BTreeSet<Uid>>,
    /// Where the stream stood when this session began.
    published: Lsn,
    /// The transaction under way: its commit and its xid, of which one rule hides the latter.
    under_way: Option<(Lsn, u32)>,
}

fn feed(state: State, confirmed: u64, view: &Arc<Mutex<Option<View>>>, touch_bytes_max: usize) -> Feed {
    let (name, messages) = ("shop".to_owned(), "tributary/s".to_owned());
    let label = Label { db: name.clone(), name, messages, tombstones: true, ..Label::default() };
    Feed::new(label, state, Lsn(confirmed), touch_bytes_max, Box::new(Server(Arc::clone(view))))
}

/// What a first start commits: the state, and where it does so the beginning of the load.
pub(super) fn first_batch(outside: &mut Outside, state: State, confirmed: u64) -> Result<Batch, End> {
    let tables: Vec<(u32, u64)> = state.tables().map(|(oid, _)| (oid, 0)).collect();
    let mut feed = feed(state, confirmed, &Arc::default(), usize::MAX);
    let mut batch = Batch::default();
    if outside.weather.loads {
        let mut open = Open { batch: &mut batch, of: 0, dice: &mut outside.dice, refused_per_mille: 0, fails: true };
        feed.begin_load("l", LoadMode::First, &tables, 1, &mut open).map_err(|_| End::Again)?;
    }
    batch.used.clear();
    batch.state = feed.take_records();
    Ok(batch)
}

impl Streaming {
    pub(super) fn new(
        outside: &mut Outside,
        belongs: Belongs,
        lineage: Rc<RefCell<BTreeSet<Uid>>>,
        state: State,
        confirmed: u64,
    ) -> Streaming {
        let view = Arc::default();
        let published = state.stream.position;
        let moved = state.moved().filter(|_| outside.keeps(Rule::MovedIsReadAgain));
        let moved: Vec<_> = moved.map(|(oid, key)| (oid, key.to_owned())).collect();
        outside.tell(|| {
            format!("process {}: streams from {confirmed}, what is published ends at {published}", belongs.1.process)
        });
        Streaming {
            feed: feed(state, confirmed, &view, windows::touch_bytes_max(outside)),
            belongs,
            lineage,
            view,
            frames: VecDeque::new(),
            batch: Batch::default(),
            committed: Lsn::ZERO,
            allowed: Lsn::ZERO,
            observed: None,
            readers: Vec::new(),
            moved,
            list: None,
            awaited: BTreeMap::new(),
            published: published.commit,
            under_way: None,
        }
    }

    /// What is left in memory when it ends.
    pub(super) fn into_rest(self) -> (State, Batch) {
        (self.feed.into_state(), self.batch)
    }

    pub(super) fn is_connected(&self, outside: &Outside) -> bool {
        outside.servers[self.belongs.0].serves(self.belongs.1)
    }

    pub(super) fn is_done(&self, outside: &Outside) -> bool {
        let server = &outside.servers[self.belongs.0];
        let stream = &self.feed.state().stream;
        let all = self.frames.is_empty()
            && self.feed.received() >= server.wal.last().map_or(Lsn::ZERO, |last| Lsn(last.end))
            && self.feed.received() >= stream.position.commit;
        all && self.feed.urgency() == Urgency::None
            // Where nothing was published there is nothing to compare.
            && (self.feed.check.is_done() || stream.history.is_empty())
            && self.readers.is_empty()
            && self.moved.is_empty()
            && self.feed.state().table(TABLES[1].0).is_some() == outside.wanted
            && self.feed.state().loads().next().is_none()
    }

    pub(super) fn step(&mut self, outside: &mut Outside, act: usize) -> Result<(), End> {
        match act {
            // A load would hardly begin before the faults are over.
            _ if outside.noisy && outside.weather.reads() && act % 5 < 2 => self.beside(outside),
            0..24 => self.receive(outside),
            24..60 => self.consume(outside),
            60..70 if self.feed.urgency() > Urgency::None => self.settle(outside),
            60..70 => Ok(()),
            70..76 => self.observe(outside),
            76..84 => self.report(outside),
            _ => self.beside(outside),
        }
    }

    /// What goes on beside the stream: another list on its way, readers of chunks.
    fn beside(&mut self, outside: &mut Outside) -> Result<(), End> {
        if !self.is_connected(outside) {
            return Err(End::Again);
        }
        match self.list.take_if(|_| self.readers.is_empty() || outside.dice.below(2) == 0) {
            Some(list) => {
                self.list = list.step(self, outside);
                Ok(())
            }
            None => Reader::step(self, outside),
        }
    }

    fn receive(&mut self, outside: &mut Outside) -> Result<(), End> {
        if !self.is_connected(outside) {
            // What was received may still be worked on.
            return if self.frames.is_empty() { Err(End::Again) } else { Ok(()) };
        }
        let keepalive = outside.dice.chance(150) || !outside.noisy;
        let server = &mut outside.servers[self.belongs.0];
        for _ in 0..=outside.dice.below(5) {
            self.frames.extend(server.send(outside.weather.empties, false));
        }
        if keepalive {
            self.frames.extend(server.send(outside.weather.empties, true));
        }
        Ok(())
    }

    /// Feeds the next messages, a few at a time.
    fn consume(&mut self, outside: &mut Outside) -> Result<(), End> {
        for _ in 0..=outside.dice.below(6) {
            self.consume_one(outside)?;
        }
        Ok(())
    }

    fn consume_one(&mut self, outside: &mut Outside) -> Result<(), End> {
        let connected = self.is_connected(outside);
        let Some(frame) = self.frames.front().cloned() else {
            return if connected { Ok(()) } else { Err(End::Again) };
        };
        // Only an update can be a move.
        let looks = matches!(&frame, Frame::Data { payload, .. } if payload[0] == b'U');
        *self.view.lock().expect("nobody panics with it") = (connected && looks).then(|| {
            let server = &outside.servers[self.belongs.0];
            let rows = server.as_of(&server.visible()).0;
            let waits = outside.keeps(Rule::ReselectWaits);
            View { snapshot: server.snapshot(), rows, end: Lsn(server.lsn), waits }
        });
        let taken = match &frame {
            Frame::Keepalive(end) => self.keepalive(outside, Lsn(*end)).map(|()| Taken::Whole),
            Frame::Data { .. } => self.data(outside, &frame),
        };
        match taken {
            Ok(Taken::NotYet) => return Ok(()),
            Ok(Taken::Whole) => drop(self.frames.pop_front()),
            Err(Error::OtherHistory(mismatch)) if !outside.keeps(overruled(&mismatch)) => {
                // The rule is out: the feed is told that nothing is amiss, and the message comes again.
                match mismatch {
                    Mismatch::Gone(_) => self.feed.check = self.lenient(),
                    Mismatch::New(_) => self.feed.transaction.iter_mut().for_each(|open| open.checked = true),
                }
                return Ok(());
            }
            Err(Error::OtherHistory(_)) => return Err(End::Stop("another history")),
            Err(Error::Stopped) => return Err(End::Again),
            Err(other) => return Err(Broken(format!("an error that nothing caused: {other}")).into()),
        }
        let history = &mut self.feed.state.stream.history;
        history.drain(..history.len().saturating_sub(HISTORY));
        if self.feed.ending().is_some() {
            self.settle(outside)?;
            return Err(End::Again);
        }
        Ok(())
    }

    /// A check for which nothing has to come.
    fn lenient(&self) -> Check {
        let stream = &self.feed.state().stream;
        Check::new(&stream.history, stream.position, Lsn(u64::MAX))
    }

    fn keepalive(&mut self, outside: &Outside, end: Lsn) -> Result<(), Error> {
        let open = if outside.keeps(Rule::KeepaliveOutside) { None } else { self.feed.transaction.take() };
        let done = self.feed.keepalive(end);
        self.feed.transaction = self.feed.transaction.or(open);
        self.flushed_as_received(outside);
        done
    }

    fn flushed_as_received(&mut self, outside: &Outside) {
        if !outside.keeps(Rule::FlushedNeverFalls) {
            self.feed.state.stream.flushed = self.feed.received();
        }
    }

    fn data(&mut self, outside: &mut Outside, frame: &Frame) -> Result<Taken, Error> {
        let Frame::Data { start, payload, of } = frame else { unreachable!("keepalives have their own way") };
        let message = pgoutput::decode(payload).expect("the model writes what it should");
        let before = (self.feed.state().stream.position, self.feed.state().stream.history.len());
        let refused_per_mille = if outside.noisy { outside.weather.refusals } else { 0 };
        let fails = outside.keeps(Rule::RefusalFails);
        let aside = windows::before(&mut self.feed, outside.out, &message);
        let mut open = Open { batch: &mut self.batch, of: *of, dice: &mut outside.dice, refused_per_mille, fails };
        let taken = self.feed.data(Lsn(*start), payload, 1, &mut open);
        let xid = self.under_way.map_or(0, |(_, xid)| xid);
        windows::behind(&mut self.feed, outside, aside, &message, xid);
        let taken = taken?;
        if self.feed.state().stream.position != before.0 {
            self.batch.used.insert(*of);
        }
        match message {
            pgoutput::Message::Begin { commit, xid, .. } => self.begun(outside, commit, xid),
            pgoutput::Message::Commit { .. } => self.committed_one(outside),
            pgoutput::Message::Logical { .. } if !outside.keeps(Rule::ActedIsRemembered) => {
                self.feed.state.stream.history.truncate(before.1);
            }
            _ => {}
        }
        Ok(taken)
    }

    fn begun(&mut self, outside: &Outside, commit: Lsn, xid: u32) {
        self.under_way = Some((commit, xid));
        if !outside.keeps(Rule::SkippedIsFed) && commit <= self.published {
            self.feed.visible(&snapshot(ALL, &[]));
        }
        if !outside.keeps(Rule::RecentFromBegin) {
            let others: Vec<u32> = self.feed.recent.xids().filter(|other| *other != xid).collect();
            self.feed.visible(&snapshot(ALL, &others));
        }
    }

    fn committed_one(&mut self, outside: &Outside) {
        self.flushed_as_received(outside);
        if let (Some((commit, xid)), false) = (self.under_way.take(), outside.keeps(Rule::RecentFromBegin)) {
            self.feed.recent.begun(commit, xid);
        }
    }

    /// Another connection looks which transactions are visible; the loop hears of it later.
    fn observe(&mut self, outside: &mut Outside) -> Result<(), End> {
        if let Some(seen) = self.observed.take() {
            self.feed.visible(&seen);
            self.confirm(outside);
        } else if self.is_connected(outside) {
            self.observed = Some(outside.servers[self.belongs.0].snapshot());
        }
        Ok(())
    }

    /// Commits what was sent together with where that leaves us.
    fn settle(&mut self, outside: &mut Outside) -> Result<(), End> {
        let received = self.feed.received();
        let mut batch = std::mem::take(&mut self.batch);
        batch.state = self.feed.take_records();
        let stream = &self.feed.state().stream;
        let (process, position, flushed) = (self.belongs.1.process, stream.position, stream.flushed);
        let records = batch.records.len();
        outside.tell(|| format!("process {process}: commits {records} records, flushed {flushed}, {position}"));
        for batch in parts(outside, batch) {
            let commit = Commit { epoch: self.belongs.2, batch, lineage: Rc::clone(&self.lineage), start: None };
            send_commit(outside, commit)?;
            if !outside.keeps(Rule::EqualTogether) && outside.strikes(500) {
                return Err(End::Again);
            }
        }
        self.committed = received;
        self.confirm(outside);
        let outcomes = self.feed.take_outcomes();
        Reader::settled(self, outside, outcomes);
        self.promised(outside)
    }

    /// What a state record says to all who read it: everything below `flushed` stands in the topics.
    fn promised(&self, outside: &Outside) -> Result<(), End> {
        let flushed = self.feed.state().stream.flushed.0;
        let server = &outside.servers[self.belongs.0];
        // Before the history is known to be ours, what was promised under another one stands there still.
        let current = Rc::ptr_eq(&server.lineage, &self.lineage) && self.feed.check.is_done() && !outside.blind;
        if current && !broker::all_published(outside, self.belongs.0, flushed.min(server.lsn)) {
            return Err(Broken::new("the state says flushed, but a change is not in its topic").into());
        }
        if current && flushed > server.lsn {
            return Err(Broken::new("the state says flushed what the server has not written").into());
        }
        Ok(())
    }

    fn confirm(&mut self, outside: &Outside) {
        let allowed = match outside.out {
            Some(Rule::VisibleBeforeConfirmed) => self.feed.check.is_done().then_some(self.committed),
            _ => self.feed.confirmable(self.committed),
        };
        self.allowed = allowed.map_or(self.allowed, |allowed| allowed.max(self.allowed));
    }

    /// Tells the server how far it may forget.
    fn report(&mut self, outside: &mut Outside) -> Result<(), End> {
        if !self.is_connected(outside) {
            return Err(End::Again);
        }
        if !outside.keeps(Rule::OnlyCommitted) {
            self.committed = self.feed.received();
            self.confirm(outside);
        }
        let (at, allowed, start) = (self.belongs.0, self.allowed.0, outside.broker.start);
        let server = &mut outside.servers[at];
        let Some(slot) = server.slot.as_mut().filter(|slot| slot.confirmed < allowed) else { return Ok(()) };
        slot.confirmed = allowed;
        outside.tell(|| format!("the slot of server {at} is confirmed up to {allowed}"));
        if !broker::all_published(outside, at, allowed) {
            return Err(Broken::new("confirmed, but not published").into());
        }
        let server = &outside.servers[at];
        // What is not streamed cannot be waited for. DDL alone keeps readers of chunks out by its lock until it is visible, and
        // whoever writes to a table that is not published yet is waited for by his.
        let streamed = |tx: &&Transaction| server.is_streamed(tx);
        let mut below = server.wal.iter().filter(|tx| tx.commit < allowed && tx.commit >= start).filter(streamed);
        match below.find(|transaction| server.invisible.contains(&transaction.uid)) {
            Some(_) => Err(Broken::new("confirmed, but not visible").into()),
            None => Ok(()),
        }
    }
}

/// The rule behind a mismatch.
fn overruled(mismatch: &Mismatch) -> Rule {
    match mismatch {
        Mismatch::Gone(_) => Rule::RememberedComesAgain,
        Mismatch::New(_) => Rule::NothingIsNew,
    }
}
