//! A process that runs the source: its start, step by step as in `source::start`, with the real checks. What streams is in
//! `session`.

use std::rc::Rc;

use postgres::replication::{Switch, System};
use schemas::fingerprint::Fingerprint;
use schemas::state::Topic;
use schemas::{CONTRACT, Lsn, Position};

use super::Rule;
use super::broker::Commit;
use super::edges;
use super::server::{self, Slot};
use super::session::{self, Streaming};
use super::wire::TABLES;
use super::world::{Broken, Outside};
use crate::config::Config;
use crate::state::State;
use crate::{Error, start};

/// Why a step was the last of a session.
#[derive(Debug)]
pub(super) enum End {
    /// Everything is dropped, and begins again from what is committed.
    Again,
    /// The source stops for good.
    Stop(&'static str),
    /// A promise is broken.
    Broken(Broken),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> End {
        End::Broken(broken)
    }
}

/// Where the records of the model stand.
pub(super) const TOPICS: [&str; TABLES.len()] = ["shop.public.users", "shop.public.orders"];
pub(super) const PARTITIONS: i32 = 2;
const PREFIX: &str = "shop";

enum Phase {
    Idle,
    /// The state was read once, and may be this server's.
    Read(State),
    Slotted(State),
    /// Fenced with this epoch.
    Fenced(State, u32),
    Streaming(Box<Streaming>),
    First(First),
}

/// A first start, after the lock of first starts.
enum First {
    Locked,
    Fenced(u32),
    /// The slot was made at this LSN.
    Slot(u32, u64),
    Visible(u32, u64),
}

pub(super) struct Process {
    pub(super) name: usize,
    /// Which server it talks to.
    pub(super) server: Option<usize>,
    /// For so many steps more.
    pub(super) asleep: usize,
    phase: Phase,
    /// Whether it had the slot in this life.
    held: bool,
    session: server::Session,
    config: Config,
    /// What an earlier session had in memory.
    remembered: Option<State>,
}

impl Process {
    pub(super) fn new(name: usize) -> Process {
        let session = server::Session { process: name, life: 0 };
        Process {
            name,
            server: None,
            asleep: 0,
            phase: Phase::Idle,
            held: false,
            session,
            config: config(),
            remembered: None,
        }
    }

    /// Drops everything: a kill, or a failure.
    pub(super) fn reset(&mut self, outside: &mut Outside) {
        self.hang_up(outside);
        if let Phase::Streaming(streaming) = std::mem::replace(&mut self.phase, Phase::Idle) {
            let (state, batch) = streaming.into_rest();
            outside.broker.abort(batch);
            self.remembered = Some(state);
        }
        (self.server, self.asleep, self.held) = (None, 0, false);
        self.session.life = outside.next_life();
    }

    /// The server takes its connections for dead.
    pub(super) fn hang_up(&mut self, outside: &mut Outside) {
        let session = self.session;
        for server in &mut outside.servers {
            if server.serves(session) {
                server.sender = None;
            }
            if server.first == Some(session) {
                server.first = None;
            }
            server.shared.retain(|(of, _)| *of != session);
        }
    }

    /// Whether all that there is has arrived, was committed, and was compared with what is remembered.
    pub(super) fn is_done(&self, outside: &Outside) -> bool {
        match &self.phase {
            Phase::Streaming(streaming) => {
                self.server == Some(outside.primary)
                    && outside.servers[outside.primary].serves(self.session)
                    && streaming.is_done(outside)
            }
            _ => false,
        }
    }

    /// Does one small thing; `act` below 100 chooses among them where there is a choice.
    pub(super) fn step(&mut self, outside: &mut Outside, act: usize) -> Result<(), End> {
        if self.asleep > 0 && outside.noisy {
            self.asleep -= 1;
            return Ok(());
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => self.begin(outside),
            Phase::First(first) => self.first(outside, first)?,
            Phase::Read(early) if !outside.keeps(Rule::SlotDecides) => self.fence(outside, early, Phase::Fenced)?,
            Phase::Read(early) => self.take_slot(outside, early, Phase::Slotted)?,
            Phase::Slotted(early) => self.fence(outside, early, Phase::Fenced)?,
            Phase::Fenced(early, epoch) => self.check(outside, early, epoch)?,
            Phase::Streaming(mut streaming) => {
                let stepped = streaming.step(outside, act);
                // What is left of it is needed in either case.
                self.phase = Phase::Streaming(streaming);
                return stepped;
            }
        };
        Ok(())
    }

    /// Step 0: is the state this server's?
    fn begin(&mut self, outside: &mut Outside) -> Phase {
        let former = outside.strikes(300).then(|| outside.dice.pick(&outside.former).copied()).flatten();
        let at = former.unwrap_or(outside.primary);
        self.server = Some(at);
        let Some(early) = outside.broker.state(outside.out) else {
            let server = &mut outside.servers[at];
            if server.first.is_some() {
                return Phase::Idle;
            }
            server.first = Some(self.session);
            return Phase::First(First::Locked);
        };
        let (system, switches) = (self.system(outside), &outside.servers[at].switches);
        let is_ours = start::check_identity(&self.config, PREFIX, &early, &system, switches).is_ok();
        if is_ours || !outside.keeps(Rule::SameServer) { Phase::Read(early) } else { Phase::Idle }
    }

    fn at(&self) -> usize {
        self.server.expect("chosen when it began")
    }

    fn system(&self, outside: &Outside) -> System {
        let server = &outside.servers[self.at()];
        System {
            system_id: "1".into(),
            timeline: server.timeline,
            xlogpos: Lsn(server.lsn),
            database: self.config.postgres.database.clone(),
        }
    }

    /// Step 1. Whoever has the slot keeps it.
    fn take_slot(&mut self, outside: &mut Outside, early: State, next: fn(State) -> Phase) -> Result<Phase, End> {
        let server = &mut outside.servers[self.at()];
        if server.sender.is_some() {
            return Ok(Phase::Read(early));
        }
        server.start(self.session);
        self.held = true;
        let confirmed = server.slot.map(|slot| slot.confirmed);
        outside.tell(|| format!("process {}: has the slot of server {}, at {confirmed:?}", self.name, self.at()));
        Ok(next(early))
    }

    /// Step 2.
    fn fence(&self, outside: &mut Outside, early: State, next: fn(State, u32) -> Phase) -> Result<Phase, End> {
        let (system, switches) = (self.system(outside), &outside.servers[self.at()].switches);
        if start::check_identity(&self.config, PREFIX, &early, &system, switches).is_err() {
            return Err(Broken::new("one who is no heir of the server fences whoever publishes").into());
        }
        // Whoever had it may have lost it without knowing.
        if !self.held && outside.servers[self.at()].sender.is_some() {
            return Err(Broken::new("one who waits for the slot fences the one who has it").into());
        }
        outside.broker.epoch += 1;
        let epoch = outside.broker.epoch;
        outside.tell(|| format!("process {}: fences, epoch {epoch}", self.name));
        Ok(next(early, epoch))
    }

    /// Steps 3 and 4.
    fn check(&mut self, outside: &mut Outside, early: State, epoch: u32) -> Result<Phase, End> {
        let mut state = match self.remembered.take() {
            Some(remembered) if !outside.keeps(Rule::StateFromKafka) => remembered,
            _ if !outside.keeps(Rule::ReadAfterFence) => early,
            _ => outside.broker.state(outside.out).ok_or(End::Again)?,
        };
        let (at, system) = (self.at(), self.system(outside));
        let server = &outside.servers[at];
        if !server.serves(self.session) {
            return Err(End::Again);
        }
        let confirmed = server.slot.ok_or(End::Again)?.confirmed;
        let (flushed, end) = (state.stream.flushed.0, server.lsn);
        outside.blind |= server.restored.is_some_and(|restored| restored < flushed && flushed <= end);
        self.check_server(outside, &mut state, &system, confirmed)?;
        let (lineage, settings) = (Rc::clone(&outside.servers[at].lineage), (at, self.session, epoch));
        let mut streaming = Streaming::new(outside, settings, lineage, state, confirmed);
        streaming.follow_list(outside)?;
        Ok(Phase::Streaming(Box::new(streaming)))
    }

    /// The real checks. A rule is taken out by showing them a server in which there is nothing to find.
    fn check_server(&self, outside: &Outside, state: &mut State, system: &System, confirmed: u64) -> Result<(), End> {
        let server = &outside.servers[self.at()];
        let (flushed, timeline, position) = (state.stream.flushed, state.stream.timeline, state.stream.position);
        let confirmed = Lsn(confirmed);
        let confirmed = if outside.keeps(Rule::SlotNotAhead) { confirmed } else { confirmed.min(flushed) };
        let end = if outside.keeps(Rule::WalNotBehind) { Lsn(server.lsn) } else { Lsn(u64::MAX) };
        let far = |switch: &Switch| Switch { at: Lsn(u64::MAX), ..*switch };
        let switches: Vec<Switch> = match outside.out {
            Some(Rule::SwitchPoint | Rule::CutToSwitch) => server.switches.iter().map(far).collect(),
            _ => server.switches.clone(),
        };
        // A server that is no ancestor's heir is shown as if it were the state's own.
        let system = System {
            timeline: if outside.keeps(Rule::StillSameServer) { system.timeline } else { timeline },
            ..system.clone()
        };
        let checked = start::check_server(&self.config, state, &system, &switches, confirmed, end);
        let switch = server.switches.iter().find(|switch| switch.timeline == timeline);
        match outside.out {
            // Both look at the same point, and only one of them is out.
            Some(Rule::CutToSwitch) if switch.is_some_and(|switch| position > Position::before(switch.at)) => {
                return Err(End::Stop("diverged"));
            }
            Some(Rule::CutToSwitch) => state.stream.flushed = flushed,
            Some(Rule::SwitchPoint) => {
                state.stream.flushed = switch.map_or(state.stream.flushed, |switch| flushed.min(switch.at));
            }
            // Both look at the end.
            Some(Rule::WalNotBehind) if Lsn(server.lsn) < flushed => {
                state.stream.flushed = Lsn(server.lsn).min(confirmed).min(flushed);
            }
            Some(Rule::FlushedIsWritten) => {
                state.stream.flushed = switch.map_or(flushed, |switch| flushed.min(switch.at))
            }
            _ => {}
        }
        checked.map_err(|error| match error {
            Error::SlotAhead { .. } => End::Stop("slot ahead"),
            Error::Behind { .. } => End::Stop("behind"),
            Error::Diverged { .. } => End::Stop("diverged"),
            Error::Again(_) => End::Again,
            other => End::Broken(Broken(format!("an error that nothing caused: {other}"))),
        })
    }

    /// Nothing was published yet.
    fn first(&mut self, outside: &mut Outside, first: First) -> Result<Phase, End> {
        let at = self.at();
        if outside.servers[at].first != Some(self.session) {
            return Err(End::Again);
        }
        Ok(Phase::First(match first {
            First::Locked => {
                outside.broker.epoch += 1;
                First::Fenced(outside.broker.epoch)
            }
            First::Fenced(_) if outside.broker.state(outside.out).is_some() => return Err(End::Again),
            First::Fenced(epoch) => {
                let server = &mut outside.servers[at];
                let lsn = server.lsn;
                server.slot = Some(Slot { confirmed: lsn, saved: lsn });
                outside.tell(|| format!("process {}: makes the slot at {lsn}", self.name));
                First::Slot(epoch, lsn)
            }
            First::Slot(epoch, lsn) => {
                let server = &outside.servers[at];
                let mut committed = server.wal.iter().filter(|transaction| transaction.commit < lsn);
                let hidden = committed.any(|transaction| server.invisible.contains(&transaction.uid));
                if hidden && outside.keeps(Rule::VisibleFirst) {
                    First::Slot(epoch, lsn)
                } else {
                    First::Visible(epoch, lsn)
                }
            }
            First::Visible(epoch, lsn) => {
                let batch = session::first_batch(outside, first_state(outside, at, lsn), lsn)?;
                let lineage = Rc::clone(&outside.servers[at].lineage);
                let commit = Commit { epoch, batch, lineage, start: Some(lsn) };
                edges::send_commit(outside, commit)?;
                return Err(End::Again);
            }
        }))
    }
}

fn config() -> Config {
    let text = "url = \"postgres://shop@localhost/shop\"\ntables = [\"public.users\", \"public.orders\"]\nslot = \"s\"\npublication = \"p\"";
    let document = service::config::Document::parse(text, std::iter::empty()).expect("TOML");
    let config = Config::read(&mut document.root(), PREFIX);
    document.finish().expect("a configuration without faults");
    config
}

/// The records of a state in which nothing is published yet. Read like any other, so that what is optional may be left out.
fn first_state(outside: &Outside, at: usize, lsn: u64) -> State {
    let (start, timeline) = (Lsn(lsn), outside.servers[at].timeline);
    let position = Position::before(start);
    let stream = format!(
        r#"{{"contract":{CONTRACT},"system_id":"1","database":"shop","timeline":{timeline},"slot":"s","publications":["p"],"flushed":"{start}","position":"{position}","history":[]}}"#
    );
    let listed = if outside.weather.latecomer { 1 } else { TABLES.len() };
    let tables = (0..listed).map(|table| (TABLES[table].0, first_table(table))).collect();
    let stream = serde_json::from_str(&stream).expect("a stream's record");
    State::first(stream, tables, TOPICS[..listed].iter().map(|name| topic(name)).collect())
}

/// A topic as it is found.
pub(super) fn topic(name: &str) -> (String, Topic) {
    let topic = r#"{"id":"t","partitions":2,"seq":[0,0]}"#;
    (name.to_owned(), serde_json::from_str(topic).expect("a topic's record"))
}

/// What the state says of a table of which nothing was published yet.
pub(super) fn first_table(table: usize) -> schemas::state::Table {
    let (name, topic, nothing) = (TABLES[table].1, TOPICS[table], Fingerprint::default());
    let record = format!(
        r#"{{"schema":"public","table":"{name}","topic":"{topic}","key":["id"],"identity":"d","columns":[],"fingerprint":"{nothing}"}}"#
    );
    serde_json::from_str(&record).expect("a table's record")
}

/// What a session is told of the process that it belongs to: server, connection, epoch.
pub(super) type Belongs = (usize, server::Session, u32);
