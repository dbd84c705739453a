//! Mirrors what a group has set aside into `<prefix>.dlq.<group>`, for whoever watches topics.
//!
//!     parked, mirrored_at null ──▶ topic ──acknowledged──▶ mirrored_at
//!
//! At least once, under the event's stable id. The parked row is the truth: while the topic is missing it waits there.
//! What may still apply by itself is given a minute for that.

use std::sync::Arc;
use std::time::Duration;

use kafka::admin::{Admin, NewTopic};
use kafka::producer::{Plain, Record};
use schemas::dead_letter::{DeadLetter, HEADER};
use schemas::{CONTRACT, partition, topic};
use service::retry::{Backoff, Outage};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::parked::Kept;
use crate::relational::Relational;
use crate::worker::Parkings;

/// The most events that are published between two looks at the answers.
const EVENTS_MAX: i64 = 200;
/// How often parked events are looked for that nobody told of: those of other processes, or from before a restart.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

const UNMIRRORED: &str = "
SELECT topic, part, off, position, class, record::text, cause, sqlstate, attempts,
       to_char(first_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
       to_char(last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')
FROM tributary.parked
WHERE grp = $1 AND topic = ANY ($3) AND mirrored_at IS NULL AND (class = 'dead' OR first_at < now() - interval '1 minute')
ORDER BY topic, part, off LIMIT $2";

const MIRRORED: &str = "
UPDATE tributary.parked p SET mirrored_at = now()
FROM unnest($2::text[], $3::int4[], $4::int8[]) AS v(topic, part, off)
WHERE p.grp = $1 AND p.topic = v.topic AND p.part = v.part AND p.off = v.off";

/// The mirror of one group.
pub(crate) struct Mirror {
    pub(crate) group: String,
    pub(crate) prefix: String,
    /// The group's topics: another prefix may keep a group of the same name in this target.
    pub(crate) topics: Vec<String>,
    pub(crate) kafka: kafka::Config,
    pub(crate) admin: Arc<Admin>,
    pub(crate) target: Arc<Relational>,
    pub(crate) parked: Arc<Parkings>,
    /// Whether a missing topic is created.
    pub(crate) create: bool,
    pub(crate) stop: CancellationToken,
}

/// A parked event as it is mirrored.
struct Letter {
    letter: DeadLetter,
    record: String,
}

impl Mirror {
    /// Mirrors until stopped. Nothing that happens here keeps the group from working.
    pub(crate) async fn run(self) {
        let mut outage = Outage::new(format!("mirror parked events to {}", self.topic()));
        let mut backoff = Backoff::new();
        loop {
            let worked = match self.stop.run_until_cancelled(self.mirror()).await {
                None => return,
                Some(worked) => worked,
            };
            let go_on = match worked {
                Ok(mirrored) => {
                    outage.over();
                    backoff.reset();
                    if mirrored > 0 {
                        tracing::info!(group = %self.group, events = mirrored, topic = %self.topic(), "mirrored parked events");
                    }
                    let told = tokio::time::timeout(LOOK_INTERVAL, self.parked.mirror.notified());
                    self.stop.run_until_cancelled(told).await.is_some()
                }
                Err(error) => {
                    outage.failed(&error);
                    backoff.wait(&self.stop).await
                }
            };
            if !go_on {
                return;
            }
        }
    }

    fn topic(&self) -> String {
        topic::of_dead_letters(&self.prefix, &self.group)
    }

    async fn mirror(&self) -> Result<usize, Error> {
        let mut mirrored = 0;
        loop {
            let letters = self.unmirrored().await?;
            if letters.is_empty() {
                return Ok(mirrored);
            }
            let partitions = self.partitions().await?;
            let published = self.publish(letters, partitions).await?;
            self.note(&published).await?;
            mirrored += published.len();
        }
    }

    async fn unmirrored(&self) -> Result<Vec<Letter>, Error> {
        let mut lease = self.target.pool().get().await?;
        let rows = sqlx::query(UNMIRRORED)
            .bind(&self.group)
            .bind(EVENTS_MAX)
            .bind(&self.topics)
            .fetch_all(lease.connection())
            .await;
        let rows = rows.map_err(|cause| self.target_failed("look for parked events", cause))?;
        lease.keep();
        Ok(rows.iter().map(|row| self.letter(row)).collect())
    }

    fn letter(&self, row: &PgRow) -> Letter {
        let (topic, part, offset): (String, i32, i64) = (row.get(0), row.get(1), row.get(2));
        let letter = DeadLetter {
            id: format!("{}/{topic}/{part}/{offset}", self.group),
            contract: CONTRACT,
            group: self.group.clone(),
            topic,
            partition: part,
            offset,
            position: row.get(3),
            class: row.get(4),
            cause: row.get(6),
            sqlstate: row.get(7),
            attempts: row.get::<i32, _>(8).unsigned_abs(),
            first_at: row.get(9),
            last_at: row.get(10),
        };
        Letter { letter, record: row.get(5) }
    }

    /// How many partitions the topic has, made first if that is allowed.
    async fn partitions(&self) -> Result<i32, Error> {
        let name = self.topic();
        let failed = |cause| Error::Kafka { group: self.group.clone(), cause };
        for attempt in 0..2 {
            if let Some(topic) = self.admin.topics(&[&name]).await.map_err(failed)?.get(&name) {
                return Ok(topic.partitions.max(1));
            }
            if self.create && attempt == 0 {
                // -1: as many replicas as the cluster makes by default.
                let new = NewTopic { name: &name, partitions: 1, replication: -1, settings: Vec::new() };
                self.admin.create(&[new]).await.map_err(failed)?;
                tracing::info!(group = %self.group, topic = %name, "created the dead-letter topic");
            }
        }
        Err(Error::NoDeadLetterTopic { group: self.group.clone(), topic: name })
    }

    async fn publish(&self, letters: Vec<Letter>, partitions: i32) -> Result<Vec<DeadLetter>, Error> {
        let (kafka, name, stop) = (self.kafka.clone(), self.topic(), self.stop.clone());
        let published =
            tokio::task::spawn_blocking(move || publish(&kafka, &name, partitions, letters, &|| stop.is_cancelled()));
        match published.await {
            Ok(published) => published.map_err(|cause| Error::Kafka { group: self.group.clone(), cause }),
            Err(_) => Err(Error::Ended { group: self.group.clone(), part: "the mirror of parked events" }),
        }
    }

    async fn note(&self, published: &[DeadLetter]) -> Result<(), Error> {
        let mut lease = self.target.pool().get().await?;
        let noted = sqlx::query(MIRRORED)
            .bind(&self.group)
            .bind(published.iter().map(|it| it.topic.clone()).collect::<Vec<_>>())
            .bind(published.iter().map(|it| it.partition).collect::<Vec<_>>())
            .bind(published.iter().map(|it| it.offset).collect::<Vec<_>>())
            .execute(lease.connection())
            .await;
        noted.map_err(|cause| self.target_failed("note what was mirrored", cause))?;
        lease.keep();
        Ok(())
    }

    fn target_failed(&self, operation: &'static str, cause: sqlx::Error) -> Error {
        Error::Target { operation, target: self.target.pool().display.clone(), cause }
    }
}

/// Publishes letters and waits for all answers. Those that the brokers have.
fn publish(
    kafka: &kafka::Config,
    topic: &str,
    partitions: i32,
    letters: Vec<Letter>,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<DeadLetter>, kafka::Error> {
    let mut plain = Plain::connect(kafka)?;
    for (tag, Letter { letter, record }) in letters.iter().enumerate() {
        let Kept { key, value, headers } =
            serde_json::from_str(record).expect("a parked record is as the sink wrote it");
        let described = serde_json::to_vec(letter).expect("a dead letter is plain data");
        let mut all: Vec<(&str, &[u8])> = headers.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
        all.push((HEADER, &described));
        let key = key.map(|raw| raw.get().as_bytes());
        let record = Record {
            topic,
            partition: partition::of_key(key.unwrap_or_default(), partitions),
            key,
            value: value.map(|raw| raw.get().as_bytes()),
            headers: &all,
        };
        plain.send(tag, &record, stop)?;
    }
    let mut published = vec![false; letters.len()];
    let mut failed = None;
    for delivery in plain.flush(stop)? {
        match delivery.result {
            Ok(_) => published[delivery.tag] = true,
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if !published.contains(&true) => Err(error),
        _ => Ok(letters.into_iter().zip(published).filter(|(_, is)| *is).map(|(it, _)| it.letter).collect()),
    }
}
