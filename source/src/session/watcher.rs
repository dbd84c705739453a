//! The watch: looks at publication and tables at the start of a session and once a minute, on a connection of its own.
//!
//!     look ─▶ faults: the session ends     ─▶ warnings: told once, counted in the metric
//!          └▶ the loop, which compares with the state ─▶ a message for each table that needs a place in the stream
//!
//! I/O only: what is seen is judged in [`crate::watch`] and in the feed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use postgres::Prepared;
use postgres::tokio_postgres::Client;
use schemas::TableName;
use schemas::state::Imprint;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use super::Input;
use crate::catalog::Messages;
use crate::feed::notice;
use crate::keys::Named;
use crate::watch::look::{Question, look};
use crate::watch::{self, Seen};
use crate::{Error, start};

/// What the watch goes by.
pub struct Settings {
    /// The publication that is streamed.
    pub publication: String,
    /// The slot, by which messages of ours are known.
    pub slot: String,
    /// How often it looks.
    pub every: Duration,
    /// The keys that are named for tables.
    pub named: Named,
}

/// Looks again and again.
pub struct Watcher {
    client: Prepared,
    settings: Settings,
    messages: Messages,
    inputs: Sender<Input>,
    /// The tables, and what is remembered of each.
    tables: BTreeMap<u32, Option<Imprint>>,
    /// How they were called at the first look.
    names: BTreeMap<u32, TableName>,
    told: BTreeSet<String>,
}

impl Watcher {
    /// Over a connection of its own, for these tables, by OID, with what the state remembers of each.
    pub async fn new(
        client: Client,
        settings: Settings,
        inputs: Sender<Input>,
        tables: BTreeMap<u32, Option<Imprint>>,
    ) -> Result<Watcher, Error> {
        let client = Arc::new(client);
        let messages = Messages::prepare(client.clone(), &start::message_prefix(&settings.slot)).await?;
        Ok(Watcher {
            client: Prepared::new(client),
            settings,
            messages,
            inputs,
            tables,
            names: BTreeMap::new(),
            told: BTreeSet::new(),
        })
    }

    /// Until the session ends.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut tick = tokio::time::interval(self.settings.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let question = Question {
                publication: &self.settings.publication,
                tables: &self.tables,
                names: &self.names,
                named: &self.settings.named,
                asks_partitions: true,
            };
            let seen = look(&self.client, &question).await?;
            let faults = watch::faults(&seen, &self.settings.publication, self.tables.keys().copied());
            if !faults.is_empty() {
                return Err(Error::Unsent(faults));
            }
            self.judge_names(&seen)?;
            let (places, found) = oneshot::channel();
            let now: Vec<_> = seen.tables.iter().map(|(oid, table)| (*oid, table.imprint())).collect();
            if self.inputs.send(Input::Watched { seen, places }).is_err() {
                return Ok(());
            }
            // Without an answer the loop has ended, and why stands elsewhere.
            let Ok(found) = found.await else { return Ok(()) };
            for oid in &found {
                self.messages.emit(&notice(*oid)).await?;
            }
            // What was not acted on yet must be found again.
            self.tables
                .extend(now.into_iter().filter(|(oid, _)| !found.contains(oid)).map(|(oid, now)| (oid, Some(now))));
        }
    }

    /// What a person should know of, once for each change. Another table under the name of one of ours is for the next
    /// session to judge.
    fn judge_names(&mut self, seen: &Seen) -> Result<(), Error> {
        if self.names.is_empty() {
            self.names = seen.tables.iter().map(|(oid, table)| (*oid, table.name.clone())).collect();
        }
        let taken = seen.successors.iter().find(|(_, other)| !self.tables.contains_key(other));
        if let Some(name) = taken.and_then(|(oid, _)| self.names.get(oid)) {
            return Err(Error::Again(format!("another table is called {name} now")));
        }
        let warnings = watch::warnings(seen, &self.names);
        metrics::gauge!("tributary_source_table_faults").set(u32::try_from(warnings.len()).unwrap_or(u32::MAX));
        warnings.difference(&self.told).for_each(|warning| tracing::warn!("{warning}"));
        self.told = warnings;
        Ok(())
    }
}
