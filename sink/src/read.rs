//! What the target holds of us, for people: how far each partition is, and what is set aside.
//!
//! Reads alone, and finds nothing where no sink has been yet.

use postgres::{Client, tokio_postgres};
use schemas::TableName;

use crate::announce;
use crate::config::Redis;
use crate::error::Error;
use crate::record::Partition;

/// How far a group is in a partition.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Standing {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Who owns it or did so last, `pid@host`.
    pub owner: String,
    /// The offset behind the last record that is done.
    pub next_offset: i64,
    /// The last record's number.
    pub seq: i64,
    /// The last record's position.
    pub position: String,
    /// What keeps the partition from going on.
    pub error: Option<String>,
    /// When it last moved, RFC 3339; not known of Redis.
    pub touched_at: Option<String>,
    /// Events set aside, undecided ones first.
    pub parked: (i64, i64),
}

/// An event set aside.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ParkedEvent {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The table.
    pub table: String,
    /// The key, canonical.
    pub key: String,
    /// Where the change stands.
    pub position: String,
    /// `undecided` or `dead`.
    pub class: String,
    /// Why.
    pub cause: String,
    /// The target's code.
    pub sqlstate: Option<String>,
    /// How often it was tried.
    pub attempts: i32,
    /// When it was set aside, RFC 3339.
    pub first_at: String,
    /// When it was mirrored to the dead-letter topic, RFC 3339.
    pub mirrored_at: Option<String>,
    /// Key, value and headers as they stood in the topic, as JSON. Only when one event is asked for.
    pub record: Option<String>,
}

/// Which events set aside are meant.
#[derive(Clone, Debug, Default)]
pub struct Filter<'f> {
    /// Of this group.
    pub group: Option<&'f str>,
    /// Of this table.
    pub table: Option<&'f TableName>,
    /// This one: topic, partition, offset.
    pub event: Option<(&'f str, i32, i64)>,
    /// At most so many.
    pub limit: i64,
}

const STANDINGS: &str = "
SELECT p.grp, p.topic, p.part, p.owner, p.next_offset, p.seq, p.position, p.error,
       to_char(p.touched_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
       count(k.off) FILTER (WHERE k.class = 'undecided'), count(k.off) FILTER (WHERE k.class = 'dead')
FROM tributary.progress p LEFT JOIN tributary.parked k ON (k.grp, k.topic, k.part) = (p.grp, p.topic, p.part)
GROUP BY p.grp, p.topic, p.part ORDER BY p.grp, p.topic, p.part";

const PARKED: &str = "
SELECT grp, topic, part, off, tbl, key, position, class, cause, sqlstate, attempts,
       to_char(first_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
       to_char(mirrored_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),
       CASE WHEN $5::int8 IS NOT NULL THEN record::text END
FROM tributary.parked
WHERE ($1::text IS NULL OR grp = $1) AND ($2::text IS NULL OR tbl = $2)
  AND ($5::int8 IS NULL OR (topic = $3::text AND part = $4::int4 AND off = $5))
ORDER BY grp, topic, part, off LIMIT $6";

/// How far every group is that keeps its progress in the target.
pub async fn standings(target: &postgres::Config) -> Result<Vec<Standing>, Error> {
    let client = connect(target).await?;
    let rows = there(client.query(STANDINGS, &[]).await, target, "read the progress")?;
    let standing = |row: &tokio_postgres::Row| Standing {
        group: row.get(0),
        topic: row.get(1),
        partition: row.get(2),
        owner: row.get(3),
        next_offset: row.get(4),
        seq: row.get(5),
        position: row.get(6),
        error: row.get(7),
        touched_at: row.get(8),
        parked: (row.get(9), row.get(10)),
    };
    Ok(rows.iter().map(standing).collect())
}

/// Events set aside, in the order of their offsets.
pub async fn parked(target: &postgres::Config, filter: &Filter<'_>) -> Result<Vec<ParkedEvent>, Error> {
    let client = connect(target).await?;
    let table = filter.table.map(ToString::to_string);
    let (topic, partition, offset) =
        (filter.event.map(|it| it.0), filter.event.map(|it| it.1), filter.event.map(|it| it.2));
    let rows = client.query(PARKED, &[&filter.group, &table, &topic, &partition, &offset, &filter.limit]).await;
    let event = |row: &tokio_postgres::Row| ParkedEvent {
        group: row.get(0),
        topic: row.get(1),
        partition: row.get(2),
        offset: row.get(3),
        table: row.get(4),
        key: row.get(5),
        position: row.get(6),
        class: row.get(7),
        cause: row.get(8),
        sqlstate: row.get(9),
        attempts: row.get(10),
        first_at: row.get(11),
        mirrored_at: row.get(12),
        record: row.get(13),
    };
    Ok(there(rows, target, "read the parked events")?.iter().map(event).collect())
}

/// How far a group is that keeps its progress in Redis. `topics` are names and numbers of partitions.
pub async fn announced(
    redis: &Redis,
    prefix: &str,
    group: &str,
    topics: &[(&str, i32)],
) -> Result<Vec<Standing>, Error> {
    let failed = |cause| Error::Redis { operation: "read the progress", address: redis.address.clone(), cause };
    let client = redis::Client::open(redis.url.expose()).map_err(failed)?;
    let mut connection = client.get_multiplexed_async_connection().await.map_err(failed)?;
    let mut standings = Vec::new();
    for (topic, partitions) in topics {
        for number in 0..*partitions {
            let key = announce::progress_key(prefix, group, &Partition { topic: (*topic).into(), number });
            let fields = ["owner", "next_offset", "seq", "position", "error"];
            let found = redis::cmd("HMGET").arg(key).arg(&fields).query_async(&mut connection).await;
            let [owner, next_offset, seq, position, error]: [Option<String>; 5] = found.map_err(failed)?;
            let Some(next_offset) = next_offset.and_then(|text| text.parse().ok()) else { continue };
            standings.push(Standing {
                group: group.to_owned(),
                topic: (*topic).to_owned(),
                partition: number,
                owner: owner.unwrap_or_default(),
                next_offset,
                seq: seq.and_then(|text| text.parse().ok()).unwrap_or_default(),
                position: position.unwrap_or_default(),
                error,
                touched_at: None,
                parked: (0, 0),
            });
        }
    }
    Ok(standings)
}

async fn connect(target: &postgres::Config) -> Result<Client, Error> {
    let refused = |cause| Error::Read { target: target.display(), operation: "connect", cause };
    postgres::connect(target, "status").await.map_err(refused)
}

/// The rows; none where our schema is not there yet.
fn there(
    rows: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>,
    target: &postgres::Config,
    operation: &'static str,
) -> Result<Vec<tokio_postgres::Row>, Error> {
    match rows {
        Err(error) if error.code().is_some_and(|code| matches!(code.code(), "42P01" | "3F000")) => Ok(Vec::new()),
        rows => rows.map_err(|cause| Error::Read {
            target: target.display(),
            operation,
            cause: postgres::Error::statement(operation, cause),
        }),
    }
}
