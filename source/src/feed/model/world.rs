//! The world of the model: servers, broker and processes, stepped in an order that the dice choose, first with faults and then
//! in peace, until everything has arrived.

use std::collections::BTreeSet;

use schemas::Position;

use super::Rule;
use super::audit;
use super::broker::Broker;
use super::dice::Dice;
use super::faults::{self, Backup, Standby};
use super::process::{End, Process};
use super::server::{Rows, Server, Uid};
use super::{Weather, client};

/// A promise that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

impl Broken {
    pub(super) fn new(what: &str) -> Broken {
        Broken(what.to_owned())
    }
}

/// How a run ended, when every promise was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The topics, folded, were the tables at every commit.
    Equal,
    /// The source stopped for good, and was right.
    Stopped(&'static str),
}

/// Everything outside of the processes.
pub(super) struct Outside {
    pub(super) servers: Vec<Server>,
    /// The primary.
    pub(super) primary: usize,
    /// Former primaries that still answer.
    pub(super) former: Vec<usize>,
    pub(super) standby: Option<Standby>,
    pub(super) backup: Option<Backup>,
    pub(super) broker: Broker,
    pub(super) dice: Dice,
    pub(super) weather: Weather,
    pub(super) out: Option<Rule>,
    /// Whether anything still breaks.
    pub(super) noisy: bool,
    /// Somebody else moved the slot.
    pub(super) stolen: bool,
    pub(super) disasters: u32,
    /// Whether the second table is to be published.
    pub(super) wanted: bool,
    /// Loads of added tables for whose straddling transactions somebody has begun to wait.
    pub(super) waits_begun: BTreeSet<String>,
    /// A restored disk was written on beyond what it was flushed to, before anybody looked, and nothing published was lost: what
    /// the state says of flushed cannot be known to be wrong.
    pub(super) blind: bool,
    uids: Uid,
    clock: i64,
    lives: u32,
    trace: Option<Vec<String>>,
}

impl Outside {
    /// Whether a rule is in its place.
    pub(super) fn keeps(&self, rule: Rule) -> bool {
        self.out != Some(rule)
    }

    pub(super) fn next_uid(&mut self) -> Uid {
        self.uids += 1;
        self.uids
    }

    /// The commit time of the next transaction: no two are alike.
    pub(super) fn now(&mut self) -> i64 {
        self.clock += i64::from(self.keeps(Rule::CommitTime));
        self.clock
    }

    pub(super) fn next_life(&mut self) -> u32 {
        self.lives += 1;
        self.lives
    }

    /// Whether something was published that this server's timeline left behind.
    fn has_diverged(&self, server: usize) -> bool {
        let Some(stream) = self.broker.state(None).map(|state| state.stream) else { return false };
        let mut switches = self.servers[server].switches.iter();
        let switch = switches.find(|switch| switch.timeline == stream.timeline);
        switch.is_some_and(|switch| stream.position > Position::before(switch.at))
    }

    /// Whether a fault happens now, in so many of a thousand cases.
    pub(super) fn strikes(&mut self, per_mille: usize) -> bool {
        self.noisy && self.dice.chance(per_mille)
    }

    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }
}

/// One run.
pub(super) struct World {
    outside: Outside,
    processes: Vec<Process>,
}

/// What came of a run, with what was drawn and, where it was asked for, what happened.
pub(super) struct Run {
    pub(super) result: Result<Ended, Broken>,
    pub(super) tape: Vec<u32>,
    pub(super) trace: Vec<String>,
}

/// How long it may take in peace until everything has arrived.
const PEACE_STEPS: usize = 4_000;

impl World {
    pub(super) fn run(mut dice: Dice, weather: Weather, out: Option<Rule>, traced: bool) -> Run {
        let mut base = Rows::default();
        for (table, rows) in base.iter_mut().enumerate() {
            for key in 1..=client::KEYS {
                if dice.below(10) < 4 {
                    rows.insert(key, client::row(&format!("first{table}")));
                }
            }
        }
        let mut server = Server::new(base, Vec::new(), 96);
        server.publication = vec![(0, !weather.latecomer)];
        let outside = Outside {
            servers: vec![server],
            primary: 0,
            former: Vec::new(),
            standby: None,
            backup: None,
            broker: Broker::default(),
            dice,
            weather,
            out,
            noisy: true,
            stolen: false,
            disasters: 0,
            wanted: true,
            waits_begun: BTreeSet::new(),
            blind: false,
            uids: 0,
            clock: 1_000_000,
            lives: 0,
            trace: traced.then(Vec::new),
        };
        let mut world = World { outside, processes: vec![Process::new(0), Process::new(1)] };
        let result = world.live();
        Run { result, tape: world.outside.dice.into_tape(), trace: world.outside.trace.unwrap_or_default() }
    }

    fn live(&mut self) -> Result<Ended, Broken> {
        for step in 0..self.outside.weather.steps {
            let what = self.outside.dice.below(100);
            let strikes = 24..24 + self.outside.weather.strikes;
            if what < 24 || step < self.outside.weather.warm {
                client::step(&mut self.outside);
            } else if strikes.contains(&what) {
                faults::strike(&mut self.outside, &mut self.processes);
            } else if what >= 98 {
                faults::land_late(&mut self.outside)?;
            } else {
                // One of them is busier, or both would mostly be starting.
                let which = usize::from(self.outside.dice.below(10) >= 8);
                let act = self.outside.dice.below(100);
                if let Some(ended) = self.act(which, act)? {
                    return Ok(ended);
                }
            }
        }
        self.outside.noisy = false;
        self.outside.tell(|| "from here on nothing breaks".to_owned());
        faults::calm(&mut self.outside, &mut self.processes);
        for step in 0..PEACE_STEPS {
            if !client::settle(&mut self.outside)
                && let Some(ended) = self.act(step % 2, (step * 7) % 100)?
            {
                return Ok(ended);
            }
            if self.processes.iter().any(|process| process.is_done(&self.outside)) {
                return audit::compare(&self.outside).map(|()| Ended::Equal);
            }
        }
        Err(Broken::new(if self.has_lost() { "a lost history goes unnoticed" } else { "no end" }))
    }

    /// Whether something was published, or acted on, that the primary does not have.
    fn has_lost(&self) -> bool {
        !self.outside.broker.used.is_subset(&self.outside.servers[self.outside.primary].lineage.borrow())
    }

    fn act(&mut self, which: usize, act: usize) -> Result<Option<Ended>, Broken> {
        let process = &mut self.processes[which];
        match process.step(&mut self.outside, act) {
            Ok(()) => Ok(None),
            Err(End::Again) => {
                self.outside.tell(|| format!("process {which}: begins again"));
                process.reset(&mut self.outside);
                Ok(None)
            }
            Err(End::Broken(broken)) => Err(broken),
            Err(End::Stop(why)) => {
                self.outside.tell(|| format!("process {which}: stops, {why}"));
                let server = process.server.unwrap_or(self.outside.primary);
                let lost = !self.outside.broker.used.is_subset(&self.outside.servers[server].lineage.borrow());
                let right = if why == "slot ahead" { self.outside.stolen } else { lost };
                if why != "diverged" && self.outside.has_diverged(server) {
                    return Err(Broken(format!("what a failover lost is told as something else: {why}")));
                }
                if right { Ok(Some(Ended::Stopped(why))) } else { Err(Broken(format!("a false stop: {why}"))) }
            }
        }
    }
}
