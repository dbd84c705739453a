//! Catching up into an empty table: from the first row seen to the last, then both sides are compared.

use std::time::{Duration, Instant};

use harness::Error;
use harness::process::Part;
use tokio::time::MissedTickBehavior;
use tokio_postgres::Client;

use crate::backlog::{Backlog, Reader};
use crate::connect::{self, Worker};
use crate::line::{Line, Measured};
use crate::load::{self, END_MARKS};
use crate::meter::now;
use crate::plan::System;
use crate::stage::Stage;
use crate::subject::{Subject, Subscription};

/// How often the target is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it is asked whether anything is written at all.
const MOVED_EVERY: Duration = Duration::from_secs(5);
/// How long nothing may be written.
const STILL_FOR: Duration = Duration::from_secs(120);
/// What a server writes to its WAL though nobody writes rows.
const STILL_BYTES: i64 = 100_000;
/// How long a catch-up may take.
const ALL_WITHIN: Duration = Duration::from_secs(1800);

/// When rows came.
#[derive(Clone, Debug, Default, PartialEq)]
struct Arrival {
    first: Option<f64>,
    last: Option<f64>,
    fault: Option<String>,
}

/// Every system in its turn.
pub(crate) async fn all(stage: &Stage, backlog: &Backlog, keep: &mut dyn FnMut(Line)) -> Result<(), Error> {
    for (turn, reader) in backlog.appliers.iter().enumerate() {
        load::install_target(&stage.target).await?;
        let client = load::connect(&stage.target).await?;
        let launched = now();
        let mut subject = start(stage, backlog, reader, turn).await?;
        let meter = stage.meter(subject.process_id())?;
        let arrival = arrival(&client, &mut subject).await?;
        let readings = meter.stop();
        let content = load::content(&client).await?;
        let differs = (content != backlog.content).then(|| {
            let (rows, expected) = (content.rows, backlog.content.rows);
            format!("the target differs from the source: {rows} rows, {expected} in the source")
        });
        subject.stop().await?;
        if reader.system == System::Native {
            stage.drop_slot(&reader.name).await?;
        }
        let line = Line::new(Measured::Apply, reader.system, backlog.events);
        let line = line.with_fault(arrival.fault).with_fault(differs);
        keep(match (arrival.first, arrival.last) {
            (Some(first), Some(last)) => line.took(launched, (first, last)).used(&readings, (first, last)),
            _ => line,
        });
    }
    Ok(())
}

async fn start(stage: &Stage, backlog: &Backlog, reader: &Reader, turn: usize) -> Result<Subject, Error> {
    match reader.system {
        System::Native => {
            Subscription::start(&stage.target, &stage.source, &reader.name, false).await.map(Subject::Subscription)
        }
        System::DebeziumJdbc(profile) => {
            let topic = stage.topic(&backlog.feeder(reader.system).name);
            let connector = connect::sink(stage.target.address(), &topic.name, &reader.name, profile);
            Worker::start(stage, &reader.name, &[connector], true).map(Subject::Worker)
        }
        _ => {
            let prefix = &backlog.feeder(System::Tributary).name;
            stage.tributary(Part::Sink, prefix, &format!("turn{turn}")).map(Subject::Tributary)
        }
    }
}

/// Looks at the target until all end marks are there: whoever shows them has applied all that stands before them.
async fn arrival(client: &Client, subject: &mut Subject) -> Result<Arrival, Error> {
    // There are no statistics: the planner would read the whole table.
    load::run(client, "SET enable_seqscan = off; SET enable_bitmapscan = off").await?;
    let mut arrival = Arrival::default();
    let mut moved = Moved::new();
    let began = Instant::now();
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while began.elapsed() < ALL_WITHIN {
        tick.tick().await;
        if arrival.first.is_none() {
            arrival.first = load::has_rows(client).await?.then(now);
        } else if load::end_marks(client).await? == END_MARKS {
            arrival.last = Some(now());
            return Ok(arrival);
        }
        arrival.fault = subject.fault();
        if arrival.fault.is_none() && moved.stands_still(client).await? {
            arrival.fault = Some(format!("nothing was written for {STILL_FOR:?}"));
        }
        if arrival.fault.is_some() {
            return Ok(arrival);
        }
    }
    arrival.fault = Some(format!("it was not done within {ALL_WITHIN:?}"));
    Ok(arrival)
}

/// Whether the target writes anything.
struct Moved {
    looked: Instant,
    at: Instant,
    bytes: i64,
}

impl Moved {
    fn new() -> Moved {
        Moved { looked: Instant::now(), at: Instant::now(), bytes: 0 }
    }

    async fn stands_still(&mut self, client: &Client) -> Result<bool, Error> {
        if self.looked.elapsed() < MOVED_EVERY {
            return Ok(false);
        }
        self.looked = Instant::now();
        let read = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
        let row = client.query_one(read, &[]).await.map_err(Error::during("ask how much the target has written"))?;
        let bytes: i64 = row.get(0);
        if bytes - self.bytes > STILL_BYTES {
            (self.bytes, self.at) = (bytes, Instant::now());
        }
        Ok(self.at.elapsed() >= STILL_FOR)
    }
}
