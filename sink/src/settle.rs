//! A person's word on what a group has set aside: it is to be tried again, or given up.
//!
//! Whoever runs the group's sinks does the rest: what may apply is tried with their next look. Nobody applies or sets aside
//! anything of a partition while its parked events are changed here.

use postgres::Client;
use postgres::tokio_postgres::{Error as Cause, Transaction};

use crate::error::Error;
use crate::read::ParkedEvent;

/// Waits for what the owners have under way, in the order in which all who lock several of them do.
const LOCK: &str = "
SELECT FROM tributary.progress
WHERE (grp, topic, part) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::int4[]))
ORDER BY grp, topic, part FOR UPDATE";

const RETRY: &str = "
UPDATE tributary.parked p SET class = 'undecided'
FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[], $3::int4[], $4::text[], $5::text[])) v (grp, topic, part, tbl, key)
WHERE (p.grp, p.topic, p.part, p.tbl, p.key) = (v.grp, v.topic, v.part, v.tbl, v.key)";

const DISCARD: &str = "
DELETE FROM tributary.parked p USING unnest($1::text[], $2::text[], $3::int4[], $4::int8[]) v (grp, topic, part, off)
WHERE (p.grp, p.topic, p.part, p.off) = (v.grp, v.topic, v.part, v.off)";

/// What stood behind them goes on.
const GO_ON: &str = "
UPDATE tributary.parked p SET class = 'undecided', attempts = 0
FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[], $3::int4[], $4::text[], $5::text[])) v (grp, topic, part, tbl, key)
WHERE (p.grp, p.topic, p.part, p.tbl, p.key) = (v.grp, v.topic, v.part, v.tbl, v.key)";

/// The columns of events, as arrays.
struct Arrays<'e> {
    groups: Vec<&'e str>,
    topics: Vec<&'e str>,
    partitions: Vec<i32>,
    tables: Vec<&'e str>,
    keys: Vec<&'e str>,
    offsets: Vec<i64>,
}

impl<'e> Arrays<'e> {
    fn of(events: &'e [ParkedEvent]) -> Arrays<'e> {
        Arrays {
            groups: events.iter().map(|event| event.group.as_str()).collect(),
            topics: events.iter().map(|event| event.topic.as_str()).collect(),
            partitions: events.iter().map(|event| event.partition).collect(),
            tables: events.iter().map(|event| event.table.as_str()).collect(),
            keys: events.iter().map(|event| event.key.as_str()).collect(),
            offsets: events.iter().map(|event| event.offset).collect(),
        }
    }

    async fn lock(&self, transaction: &Transaction<'_>) -> Result<(), Cause> {
        transaction.query(LOCK, &[&self.groups, &self.topics, &self.partitions]).await.map(drop)
    }

    /// One of the statements over keys.
    async fn over_keys(&self, transaction: &Transaction<'_>, sql: &'static str) -> Result<(), Cause> {
        let Arrays { groups, topics, partitions, tables, keys, .. } = self;
        transaction.execute(sql, &[groups, topics, partitions, tables, keys]).await.map(drop)
    }
}

/// The keys of these events are tried again, with all that is set aside of them.
pub async fn retry(target: &postgres::Config, events: &[ParkedEvent]) -> Result<(), Error> {
    change(target, events, "have parked events tried again", Change::Retry).await
}

/// These events are given up, and what stands behind them goes on.
pub async fn discard(target: &postgres::Config, events: &[ParkedEvent]) -> Result<(), Error> {
    change(target, events, "give parked events up", Change::Discard).await
}

/// What is done to parked events.
enum Change {
    Retry,
    Discard,
}

async fn change(
    target: &postgres::Config,
    events: &[ParkedEvent],
    operation: &'static str,
    change: Change,
) -> Result<(), Error> {
    let (mut client, events) = (connect(target, operation).await?, Arrays::of(events));
    let work = async {
        let transaction = client.transaction().await?;
        events.lock(&transaction).await?;
        match change {
            Change::Retry => events.over_keys(&transaction, RETRY).await?,
            Change::Discard => {
                let Arrays { groups, topics, partitions, offsets, .. } = &events;
                transaction.execute(DISCARD, &[groups, topics, partitions, offsets]).await?;
                events.over_keys(&transaction, GO_ON).await?;
            }
        }
        transaction.commit().await
    };
    let failed = |cause| Error::Read {
        target: target.display(),
        operation,
        cause: postgres::Error::statement(operation, cause),
    };
    work.await.map_err(failed)
}

async fn connect(target: &postgres::Config, operation: &'static str) -> Result<Client, Error> {
    let refused = |cause| Error::Read { target: target.display(), operation, cause };
    postgres::connect(target, "dlq").await.map_err(refused)
}
