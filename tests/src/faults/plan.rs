//! What befalls the source in one trial: drawn from the seed alone, so that a seed repeats it.
//!
//! Pure. What each fault means in deeds is the trial's to know.

use std::fmt;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::proxy::{END_TXN, Way};

/// The points of a first start, in their order.
pub const OF_FIRST_START: [&str; 5] =
    ["first-publication", "first-slot", "first-topics", "first-sent", "first-committed"];

/// The points of each start, in their order.
pub const OF_START: [&str; 3] = ["slot-taken", "fenced", "state-read"];

/// The points of a load.
pub const OF_LOAD: [&str; 5] = ["chunk-opened", "chunk-read", "chunk-filled", "chunk-marked", "chunk-committed"];

/// The points of a transaction, from its first record to what the server is told of it.
pub const OF_STREAM: [&str; 7] =
    ["sent", "before-commit", "commit-flushed", "commit-answered", "committed", "confirmed", "reported"];

/// The points of going over from one list of tables to another, in their order.
pub const OF_LIST: [&str; 5] = ["list-topics", "list-publication", "list-waited", "list-emitted", "before-ending"];

/// The point that is passed when only the state is written.
pub const IDLE: &str = "state-only";

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// PostgreSQL.
    Postgres,
    /// Kafka.
    Kafka,
}

/// How a server goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It shuts down.
    InOrder,
    /// It is killed.
    Killed,
}

/// Who goes on after a process was frozen and another took over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivor {
    /// The one that woke.
    Zombie,
    /// The one that took over.
    Successor,
}

/// How the source fares while its primary is lost and the standby promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// It lives, and finds the new primary by itself.
    Lives,
    /// It is killed, and starts anew when the standby is the primary.
    IsDead,
}

/// One thing that befalls the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It starts anew and dies when it reaches a point for the nth time.
    DiesAt(&'static str, u32),
    /// It starts anew and fails at a point.
    FailsAt(&'static str, u32),
    /// It starts anew and waits at a point, each time, for so many milliseconds.
    WaitsAt(&'static str, u32),
    /// It is killed.
    Killed,
    /// Its connections fare badly for so many milliseconds.
    Network(Side, Way, u32),
    /// The same, and it is killed before they are well again.
    KilledWhile(Side, Way, u32),
    /// The broker goes and comes back.
    Broker(Manner),
    /// The database server goes and comes back.
    Server(Manner),
    /// The database server is gone for good, and its standby takes its place.
    FailOver(Meanwhile),
    /// It is frozen until another has taken over, then wakes.
    Zombie(Survivor),
    /// It starts anew with one table more, and dies on the way to that list when it reaches a point.
    List(&'static str),
}

/// What befalls the source in one trial, and how long it is left alone behind each, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan(pub Vec<(Fault, u32)>);

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Plan {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut steps = vec![(at_point(random, &[&OF_FIRST_START, &OF_LOAD]), pause(random))];
        for _ in 0..random.random_range(2..=4) {
            steps.push((anything(random), pause(random)));
        }
        // What takes long comes at most once.
        let rare = match random.random_range(0..20) {
            0 => Some(Fault::Broker(Manner::Killed)),
            1 => Some(Fault::Broker(Manner::InOrder)),
            2..4 => Some(Fault::Server(Manner::Killed)),
            4..6 => Some(Fault::Server(Manner::InOrder)),
            6..8 => Some(Fault::Zombie(Survivor::Zombie)),
            8..10 => Some(Fault::Zombie(Survivor::Successor)),
            10..15 => Some(Fault::List(OF_LIST.choose(random).expect("there are points"))),
            15 => Some(Fault::FailOver(Meanwhile::Lives)),
            16 => Some(Fault::FailOver(Meanwhile::IsDead)),
            _ => None,
        };
        if let Some(rare) = rare {
            steps.insert(random.random_range(1..=steps.len()), (rare, pause(random)));
        }
        Plan(steps)
    }
}

fn pause(random: &mut ChaCha8Rng) -> u32 {
    random.random_range(0..700)
}

fn anything(random: &mut ChaCha8Rng) -> Fault {
    match random.random_range(0..12) {
        0 => Fault::Killed,
        1..7 => at_point(random, &[&OF_START, &OF_LOAD, &OF_STREAM, &OF_STREAM]),
        7..10 => {
            let (side, way) = network(random);
            Fault::Network(side, way, random.random_range(50..1500))
        }
        _ => {
            let (side, way) = network(random);
            Fault::KilledWhile(side, way, random.random_range(50..700))
        }
    }
}

fn at_point(random: &mut ChaCha8Rng, of: &[&[&'static str]]) -> Fault {
    let points = of.choose(random).expect("there are points");
    let point = *points.choose(random).expect("there are points");
    let time = match point {
        "sent" => random.random_range(1..=80),
        "reported" => random.random_range(1..=3),
        point if OF_STREAM.contains(&point) => random.random_range(1..=20),
        point if OF_LOAD.contains(&point) => random.random_range(1..=10),
        _ => 1,
    };
    match random.random_range(0..10) {
        0..7 => Fault::DiesAt(point, time),
        7..9 => Fault::FailsAt(point, time),
        _ => Fault::WaitsAt(point, if point == "sent" { 2 } else { random.random_range(20..300) }),
    }
}

fn network(random: &mut ChaCha8Rng) -> (Side, Way) {
    let side = if random.random() { Side::Postgres } else { Side::Kafka };
    let way = match random.random_range(0..4) {
        0 => Way::Cut,
        1 => Way::Stalled,
        2 => Way::Throttled(random.random_range(500..20_000)),
        _ if side == Side::Kafka => Way::CutBehind(END_TXN),
        _ => Way::Cut,
    };
    (side, way)
}

impl Plan {
    /// Whether the standby of a server is promoted.
    pub fn has_promotion(&self) -> bool {
        self.0.iter().any(|(fault, _)| matches!(fault, Fault::FailOver(_)))
    }

    /// Whether a table joins the list on the way.
    pub fn has_latecomer(&self) -> bool {
        self.0.iter().any(|(fault, _)| matches!(fault, Fault::List(_)))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (fault, _)) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Side| if *side == Side::Kafka { "Kafka" } else { "PostgreSQL" };
        let how = |manner: &Manner| if *manner == Manner::Killed { "killed" } else { "restarted" };
        match self {
            Fault::DiesAt(point, time) => write!(f, "dies at {point} ({time})"),
            Fault::FailsAt(point, time) => write!(f, "fails at {point} ({time})"),
            Fault::WaitsAt(point, ms) => write!(f, "waits {ms} ms at {point}"),
            Fault::Killed => f.write_str("killed"),
            Fault::Network(with, way, ms) => write!(f, "{} {} for {ms} ms", side(with), words(*way)),
            Fault::KilledWhile(with, way, ms) => write!(f, "{} {}, killed after {ms} ms", side(with), words(*way)),
            Fault::Broker(manner) => write!(f, "the broker {}", how(manner)),
            Fault::Server(manner) => write!(f, "PostgreSQL {}", how(manner)),
            Fault::FailOver(Meanwhile::Lives) => f.write_str("a standby promoted"),
            Fault::FailOver(Meanwhile::IsDead) => f.write_str("a standby promoted while it is dead"),
            Fault::List(point) => write!(f, "another list, dies at {point}"),
            Fault::Zombie(Survivor::Zombie) => f.write_str("frozen, succeeded, woken, the successor killed"),
            Fault::Zombie(Survivor::Successor) => f.write_str("frozen, succeeded, woken, then killed"),
        }
    }
}

fn words(way: Way) -> String {
    match way {
        Way::Open => "open".to_owned(),
        Way::Cut => "cut".to_owned(),
        Way::Stalled => "stalled".to_owned(),
        Way::Throttled(bytes) => format!("at {bytes} bytes/s"),
        Way::CutBehind(_) => "cut behind a commit's request".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_repeats_its_plan_and_a_campaign_draws_everything() {
        let plans: Vec<Plan> = (1..=200).map(Plan::draw).collect();
        assert_eq!(plans[6], Plan::draw(7));
        let drawn: HashSet<String> = plans.iter().flat_map(|plan| &plan.0).map(|(fault, _)| kind(fault)).collect();
        let points = [&OF_FIRST_START[..], &OF_START, &OF_LOAD, &OF_STREAM].concat();
        for point in points {
            assert!(drawn.contains(&format!("dies at {point}")), "nobody dies at {point}: {drawn:?}");
        }
        for point in OF_LIST {
            assert!(drawn.contains(&format!("another list, dies at {point}")), "nobody dies at {point}: {drawn:?}");
        }
        for other in [
            "killed",
            "the broker killed",
            "the broker restarted",
            "PostgreSQL killed",
            "PostgreSQL restarted",
            "a standby promoted",
            "a standby promoted while it is dead",
        ] {
            assert!(drawn.contains(other), "no {other}: {drawn:?}");
        }
        for way in [
            "PostgreSQL cut",
            "PostgreSQL stalled",
            "Kafka cut",
            "Kafka stalled",
            "Kafka cut behind a commit's request",
        ] {
            assert!(drawn.contains(way), "no {way}: {drawn:?}");
        }
    }

    /// A fault without its numbers.
    fn kind(fault: &Fault) -> String {
        let text = fault.to_string();
        let end =
            text.find(" (").or_else(|| text.find(" for ")).or_else(|| text.find(", killed")).unwrap_or(text.len());
        text[..end].to_owned()
    }
}
