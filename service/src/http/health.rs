//! What the parts of the process say about themselves.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// The parts of the process and how they are. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<String, Part>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Starting,
    Ready,
    Failed(String),
}

impl Health {
    /// Nothing is known yet, so nothing is ready.
    pub fn new() -> Health {
        Health::default()
    }

    /// The part `name` does its work, or does not do it yet or any more.
    pub fn ready(&self, name: &str, ready: bool) {
        self.set(name, if ready { Part::Ready } else { Part::Starting });
    }

    /// The part `name` has ended and will not come back by itself.
    pub fn failed(&self, name: &str, reason: &str) {
        self.set(name, Part::Failed(reason.to_owned()));
    }

    /// Whether every part works: at least one, none starting, none failed. The text has one line a part.
    pub fn is_ready(&self) -> bool {
        self.readiness().is_ok()
    }

    fn set(&self, name: &str, part: Part) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), part);
    }

    pub(super) fn alive(&self) -> Result<String, String> {
        self.verdict(|part| !matches!(part, Part::Failed(_)))
    }

    pub(super) fn readiness(&self) -> Result<String, String> {
        let known = !self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        self.verdict(|part| known && *part == Part::Ready).and_then(|text| if known { Ok(text) } else { Err(text) })
    }

    fn verdict(&self, good: impl Fn(&Part) -> bool) -> Result<String, String> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (name, part) in parts.iter() {
            let line = match part {
                Part::Starting => "not ready",
                Part::Ready => "ready",
                Part::Failed(reason) => reason,
            };
            writeln!(text, "{name}: {line}").expect("a String takes what is written to it");
        }
        if parts.values().all(good) { Ok(text) } else { Err(text) }
    }
}
