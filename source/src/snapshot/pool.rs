//! Who reads what, and when: orders become tasks, and tasks chunks.
//!
//! Waiting and I/O only: it does not know what becomes of a chunk's rows. It connects when there is something to read, and
//! lets the connections go when there is nothing.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use schemas::state::LoadTable;
use tokio::sync::mpsc::UnboundedReceiver;

use super::reader::{Published, Reader};
use super::{Order, Settings, Target, Task, Work};
use crate::catalog::Messages;
use crate::session::Input;
use crate::window::Part;
use crate::{Error, lockers, range};

/// How often a load says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How many rows are asked for by their keys at a time.
const KEYS_MAX: usize = 100;

/// Does what is ordered, one task after the other.
pub struct Pool {
    orders: UnboundedReceiver<Order>,
    inputs: Sender<Input>,
    settings: Settings,
    tasks: VecDeque<Task>,
    is_paused: bool,
}

impl Pool {
    /// A pool that has nothing to do yet.
    pub fn new(orders: UnboundedReceiver<Order>, inputs: Sender<Input>, settings: Settings) -> Pool {
        Pool { orders, inputs, settings, tasks: VecDeque::new(), is_paused: false }
    }

    /// Obeys until nobody can order anything any more.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut reader = None;
        loop {
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
            let Some(task) = self.tasks.pop_front().filter(|_| !self.is_paused) else {
                reader = None;
                match self.orders.recv().await {
                    Some(order) => self.obey(order),
                    None => return Ok(()),
                }
                continue;
            };
            let reader = match &mut reader {
                Some(reader) => reader,
                none => none.insert(self.connect().await?),
            };
            work(reader, task).await?;
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Do(task) => self.tasks.push_back(task),
            Order::Pause => self.is_paused = true,
            Order::Resume => self.is_paused = false,
            Order::Cancel { load } => self.tasks.retain(|task| task.work.load() != Some(&load)),
        }
    }

    /// Markers go over a connection of their own, so that they are no part of a chunk's transaction.
    async fn connect(&self) -> Result<Reader, Error> {
        let markers = postgres::connect(&self.settings.postgres, "markers").await?;
        let messages = Messages::prepare(markers, &self.settings.messages).await?;
        let client = postgres::connect(&self.settings.postgres, "snapshot").await?;
        Ok(Reader::new(client, messages, self.inputs.clone(), self.settings.clone()))
    }
}

async fn work(reader: &mut Reader, Task { oid, name, work }: Task) -> Result<(), Error> {
    let mut table = Target { oid, name, ranges_of: None, is_bounded: false };
    match work {
        Work::Load { load, done, is_added } => match self::load(reader, &mut table, &load, done, is_added).await {
            Err(Error::Dropped { table }) => {
                tracing::warn!(%table, "the table was dropped before its load was done: the others go on without it");
                Ok(())
            }
            loaded => loaded,
        },
        Work::Keys { load: None, keys } => rows(reader, &mut table, keys).await,
        Work::Keys { load: Some(load), keys } => list(reader, &mut table, &load, keys).await,
    }
}

async fn load(
    reader: &mut Reader,
    table: &mut Target,
    load: &str,
    mut done: LoadTable,
    is_added: bool,
) -> Result<(), Error> {
    if is_added {
        let why = format!("before {} is loaded", table.name);
        lockers::wait(reader.client(), Some(&[table.oid]), &why).await?;
    }
    table.ranges_of.clone_from(&done.ranges_of);
    table.is_bounded = done.ranges_of.is_none() && !done.done.is_empty();
    tracing::info!(table = %table.name, rows = done.rows, "loading");
    let (begun, mut told) = (Instant::now(), Instant::now());
    while let Some(range) = range::next(&done.done) {
        let Published { covered, ranges_of, rows } = reader.chunk(table, Some(load), &Part::Range(range)).await?;
        if let Part::Range(range) = covered {
            range::settle(&mut done, range, ranges_of.as_ref());
            table.ranges_of.clone_from(&done.ranges_of);
        }
        done.rows += rows;
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            let (rows, of) = (done.rows, done.rows_estimated);
            tracing::info!(table = %table.name, rows, of, "loading");
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    tracing::info!(table = %table.name, rows = done.rows, seconds = %format!("{seconds:.1}"), "loaded");
    Ok(())
}

async fn rows(reader: &mut Reader, table: &mut Target, keys: Vec<String>) -> Result<(), Error> {
    tracing::info!(table = %table.name, rows = keys.len(), "reading rows again that moved before the last stop");
    for keys in keys.chunks(KEYS_MAX) {
        match reader.chunk(table, None, &Part::Keys(keys.to_vec())).await {
            Err(Error::Dropped { table }) => {
                tracing::info!(%table, "the table was dropped, and its rows with it");
                break;
            }
            read => read?,
        };
    }
    Ok(())
}

/// Reads a list of keys. Those that are equal are read together: they have one answer.
async fn list(reader: &mut Reader, table: &mut Target, load: &str, mut left: Vec<String>) -> Result<(), Error> {
    tracing::info!(table = %table.name, keys = left.len(), load, "reading rows by their keys");
    while !left.is_empty() {
        let (groups, void) = match reader.groups(table, &left).await {
            Err(Error::Dropped { table }) => {
                tracing::warn!(%table, load, "the table was dropped before all keys of a list were answered");
                return Ok(());
            }
            looked_at => looked_at?,
        };
        if !void.is_empty() {
            tracing::warn!(table = %table.name, load, keys = void.len(), "keys that can name no row of the table are not answered");
        }
        let mut keys = Vec::new();
        for group in groups {
            if !keys.is_empty() && keys.len() + group.len() > KEYS_MAX {
                break;
            }
            keys.extend(group);
        }
        let part = Part::List { keys, void, rows: Vec::new() };
        if let Part::List { keys, void, .. } = reader.chunk(table, Some(load), &part).await?.covered {
            left.retain(|key| !keys.contains(key) && !void.contains(key));
        }
    }
    Ok(())
}
