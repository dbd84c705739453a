//! Looks for rows at the end of their way and takes the time since each was written, on one clock: that of this machine.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use harness::Error;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::Message;
use tokio_postgres::Client;

use crate::meter::now;
use crate::stamp;

/// How often the target is asked for new rows: half of it stands in every figure.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// One row: when it was written (just before its commit), and how long it took from there. In seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) written: f64,
    pub(crate) taken: f64,
}

/// A probe at work.
pub(crate) struct Probe {
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
    work: Work,
}

enum Work {
    Thread(JoinHandle<Result<Vec<Sample>, Error>>),
    Task(tokio::task::JoinHandle<Result<Vec<Sample>, Error>>),
}

/// What a probe's loop keeps.
struct Seen {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    samples: Vec<Sample>,
}

impl Probe {
    /// Reads a topic as its records come.
    pub(crate) fn of_topic(consumer: BaseConsumer) -> Result<Probe, Error> {
        Probe::in_thread(move |mut seen| {
            while seen.goes_on() {
                match consumer.poll(Duration::from_millis(100)) {
                    None => {}
                    Some(Ok(message)) => seen.first_stamp(message.payload().unwrap_or_default()),
                    Some(Err(fault)) => return Err(Error::during("read the topic")(fault)),
                }
            }
            Ok(seen.samples)
        })
    }

    /// Reads a named pipe into which somebody writes the raw stream. Ends with the writer.
    pub(crate) fn of_pipe(pipe: PathBuf) -> Result<Probe, Error> {
        Probe::in_thread(move |mut seen| {
            let failed = |cause| Error::during(format!("read {}", pipe.display()))(cause);
            let mut pipe = File::open(&pipe).map_err(failed)?;
            let (mut held, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
            loop {
                let length = pipe.read(&mut chunk).map_err(failed)?;
                if length == 0 {
                    return Ok(seen.samples);
                }
                held.extend_from_slice(&chunk[..length]);
                let passed = seen.stamps(&held);
                // A stamp may be cut in two by the end of what was read.
                held.drain(..passed.max(held.len().saturating_sub(40)));
            }
        })
    }

    /// Asks a table for rows that were not there before.
    pub(crate) fn of_table(client: Client) -> Probe {
        let (stop, seen) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let loop_state = Seen { stop: stop.clone(), count: seen.clone(), samples: Vec::new() };
        Probe { stop, seen, work: Work::Task(tokio::spawn(ask_for_rows(client, loop_state))) }
    }

    /// How many rows were seen so far.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Ends it. Where it ends with its writer, that one must have ended.
    pub(crate) async fn stop(self) -> Result<Vec<Sample>, Error> {
        self.stop.store(true, Ordering::Relaxed);
        match self.work {
            Work::Task(task) => task.await.expect("a probe does not panic"),
            Work::Thread(thread) => {
                let join = move || thread.join().expect("a probe does not panic");
                tokio::task::spawn_blocking(join).await.expect("waiting for a thread does not panic")
            }
        }
    }

    fn in_thread(run: impl FnOnce(Seen) -> Result<Vec<Sample>, Error> + Send + 'static) -> Result<Probe, Error> {
        let (stop, seen) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let state = Seen { stop: stop.clone(), count: seen.clone(), samples: Vec::new() };
        let thread = std::thread::Builder::new().name("probe".into()).spawn(move || run(state));
        Ok(Probe { stop, seen, work: Work::Thread(thread.map_err(Error::during("start a probe"))?) })
    }
}

impl Seen {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn add(&mut self, written: f64, at: f64) {
        self.samples.push(Sample { written, taken: at - written });
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn first_stamp(&mut self, record: &[u8]) {
        let at = now();
        if let Some((written, _)) = stamp::find(record) {
            self.add(written, at);
        }
    }

    /// All stamps in `bytes`; where the last of them ends.
    fn stamps(&mut self, bytes: &[u8]) -> usize {
        let (at, mut passed) = (now(), 0);
        while let Some((written, end)) = stamp::find(&bytes[passed..]) {
            self.add(written, at);
            passed += end;
        }
        passed
    }
}

async fn ask_for_rows(client: Client, mut seen: Seen) -> Result<Vec<Sample>, Error> {
    const ASK: &str = "SELECT id, extract(epoch FROM created_at)::float8 FROM orders WHERE id > $1";
    let failed = || Error::during("ask the target for new rows");
    // There are no statistics: the planner would read the whole table.
    client.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off").await.map_err(failed())?;
    let ask = client.prepare(ASK).await.map_err(failed())?;
    let mut tick = tokio::time::interval(ASK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Rows may come out of order, so those above the lowest gap are kept.
    let (mut low, mut above) = (0_i64, std::collections::HashSet::new());
    while seen.goes_on() {
        tick.tick().await;
        let rows = client.query(&ask, &[&low]).await.map_err(failed())?;
        let at = now();
        for row in rows {
            let key: i64 = row.get(0);
            if above.insert(key) {
                seen.add(row.get(1), at);
            }
        }
        while above.remove(&(low + 1)) {
            low += 1;
        }
    }
    Ok(seen.samples)
}
