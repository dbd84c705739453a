//! The configuration, read again while the source runs: a list that was changed in its file is gone over to without a restart.
//!
//!     message configuration/… ─▶ read again ─┬─ wrong, or the same names: said loudly, and all goes on as before
//!                                            └─ another, or with patterns, which may match more by now:
//!                                               the session ends, the next one begins with it ─▶ fault: back to the old
//!
//! Server, slot and name stay what they were: to change those takes a start of its own.

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::Config;

/// Reads `[source]` again, from wherever it was read; the text of a fault, if there is one.
type Read = dyn Fn() -> Result<Config, String> + Send + Sync;

/// The way to read the configuration again, and what was read and waits for the next session. Clones share it.
#[derive(Clone)]
pub struct Reread {
    read: Arc<Read>,
    next: Arc<Mutex<Option<Config>>>,
}

impl Reread {
    /// By `read`.
    pub fn new(read: impl Fn() -> Result<Config, String> + Send + Sync + 'static) -> Reread {
        Reread { read: Arc::new(read), next: Arc::default() }
    }

    /// Reads it. Whether a new session is to begin: then [`Reread::take`] has what it begins with.
    pub(crate) fn differs(&self, current: &Config) -> bool {
        let read = match (self.read)() {
            Ok(read) => read,
            Err(fault) => {
                tracing::error!(
                    "asked to read the configuration again, which is at fault; going on with the one before: {fault}"
                );
                return false;
            }
        };
        let has_patterns = read.tables.taking().any(|item| item.table().is_none());
        if read.tables == current.tables && has_patterns {
            tracing::info!(
                "asked to read the configuration again, and source.tables is what it was; looking which tables its patterns match by now. If it was changed in a file on another machine, change it here too"
            );
        } else if read.tables == current.tables {
            tracing::warn!(
                "asked to read the configuration again, and source.tables is what it was: if it was changed in a file on another machine, change it here too; going on as before"
            );
            return false;
        }
        let (postgres, slot, name) = (current.postgres.clone(), current.slot.clone(), current.name.clone());
        let next = Config { postgres, slot, name, ..read };
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        true
    }

    /// What the next session begins with, if that is another configuration.
    pub(crate) fn take(&self) -> Option<Config> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use schemas::Selection;
    use service::config::Document;

    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        let document = Document::parse(text, std::iter::empty()).map_err(|fault| fault.to_string())?;
        let mut root = document.root();
        let config = Config::read(&mut root.section("source"), "shop");
        drop(root);
        document.finish().map_err(|fault| fault.to_string())?;
        Ok(config)
    }

    fn with(tables: &str, slot: &str) -> String {
        format!("[source]\nurl = 'postgresql://u@h/d'\nslot = '{slot}'\ntables = [{tables}]")
    }

    #[test]
    fn only_another_list_begins_another_session_and_the_slot_stays() {
        let current = config(&with("'a.b'", "s")).expect("sound");
        let reread = |text: String| Reread::new(move || config(&text));
        let same = reread(with("'a.b'", "other"));
        assert!(!same.differs(&current) && same.take().is_none());
        let wrong = reread("[source]\nurl = 7".to_owned());
        assert!(!wrong.differs(&current) && wrong.take().is_none());
        let other = reread(with("'a.b', 'a.c'", "other"));
        assert!(other.differs(&current));
        let next = other.take().expect("it waits for the next session");
        assert_eq!(next.slot, "s");
        assert_eq!(next.tables, Selection::of_tables(&["a.b", "a.c"].map(|name| name.parse().expect("a name"))));
        assert!(other.take().is_none());
    }

    /// A table that was made after the start is published once somebody asks for it.
    #[test]
    fn patterns_are_held_against_the_catalog_again() {
        let text = with("'a.*', '!a.b'", "s");
        let current = config(&text).expect("sound");
        let reread = Reread::new(move || config(&text));
        assert!(reread.differs(&current));
        assert_eq!(reread.take().expect("it waits for the next session").tables, current.tables);
    }
}
