//! Progress and parked events in the target: their SQL, in one place.

use schemas::{Position, Seq, TableName};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::batch::{Batch, Progress};
use crate::parked::{Class, Parked, ParkedKeys};
use crate::record::Partition;
use crate::target::Claim;

/// Takes the partition over. Waits for what its owner has under way: the row is locked until then.
pub(super) async fn claim(
    connection: &mut PgConnection,
    group: &str,
    owner: &str,
    partition: &Partition,
) -> Result<(i64, Progress), sqlx::Error> {
    let sql = "INSERT INTO tributary.progress (grp, topic, part, claim, owner, next_offset, last_offset, seq, position)
               VALUES ($1, $2, $3, 1, $4, 0, -1, 0, $5)
               ON CONFLICT (grp, topic, part) DO UPDATE
               SET claim = progress.claim + 1, owner = excluded.owner, error = NULL, touched_at = now()
               RETURNING claim, next_offset, last_offset, seq, position";
    let row = of_partition(sqlx::query(sql), group, partition)
        .bind(owner)
        .bind(Progress::NOTHING.position.to_string())
        .fetch_one(connection)
        .await?;
    Ok((row.get(0), progress(&row, 1)?))
}

/// The compare-and-set that comes first in every transaction. `false` where the partition is not ours, or not where we think.
pub(super) async fn advance(
    connection: &mut PgConnection,
    group: &str,
    claim: &Claim,
    batch: &Batch,
) -> Result<bool, sqlx::Error> {
    let sql = "UPDATE tributary.progress
               SET next_offset = $6, last_offset = $7, seq = $8, position = $9, error = NULL, touched_at = now()
               WHERE grp = $1 AND topic = $2 AND part = $3 AND claim = $4 AND next_offset = $5";
    let done = of_partition(sqlx::query(sql), group, &claim.partition)
        .bind(claim.number)
        .bind(batch.from.next_offset)
        .bind(batch.to.next_offset)
        .bind(batch.to.last_offset)
        .bind(batch.to.seq.0.cast_signed())
        .bind(batch.to.position.to_string())
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Where the partition stands, if the claim is still ours.
pub(super) async fn read(
    connection: &mut PgConnection,
    group: &str,
    claim: &Claim,
) -> Result<Option<Progress>, sqlx::Error> {
    let sql = "SELECT next_offset, last_offset, seq, position FROM tributary.progress
               WHERE grp = $1 AND topic = $2 AND part = $3 AND claim = $4";
    let row =
        of_partition(sqlx::query(sql), group, &claim.partition).bind(claim.number).fetch_optional(connection).await?;
    row.map(|row| progress(&row, 0)).transpose()
}

/// Says beside the progress what keeps the partition from going on.
pub(super) async fn report(
    connection: &mut PgConnection,
    group: &str,
    claim: &Claim,
    problem: &str,
) -> Result<(), sqlx::Error> {
    let sql = "UPDATE tributary.progress SET error = $5, touched_at = now()
               WHERE grp = $1 AND topic = $2 AND part = $3 AND claim = $4";
    let query = of_partition(sqlx::query(sql), group, &claim.partition).bind(claim.number).bind(problem);
    query.execute(connection).await.map(drop)
}

/// The keys that stand still.
pub(super) async fn parked_keys(
    connection: &mut PgConnection,
    group: &str,
    partition: &Partition,
) -> Result<ParkedKeys, sqlx::Error> {
    let sql =
        "SELECT tbl, key, min(class) FROM tributary.parked WHERE grp = $1 AND topic = $2 AND part = $3 GROUP BY 1, 2";
    let mut keys = ParkedKeys::default();
    for row in of_partition(sqlx::query(sql), group, partition).fetch_all(connection).await? {
        let table = row.get::<String, _>(0).parse::<TableName>().map_err(|error| sqlx::Error::Decode(error.into()))?;
        let class = if row.get::<&str, _>(2) == Class::Dead.as_str() { Class::Dead } else { Class::Undecided };
        keys.insert(table, row.get::<String, _>(1).into_bytes(), class);
    }
    Ok(keys)
}

/// Sets events aside. One that stands there already, because a person had the partition go back, is the same one.
pub(super) async fn park(
    connection: &mut PgConnection,
    group: &str,
    partition: &Partition,
    parked: &[Parked],
) -> Result<(), sqlx::Error> {
    if parked.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO tributary.parked (grp, topic, part, off, tbl, key, position, class, record, cause, sqlstate, attempts)
               SELECT $1, $2, $3, off, tbl, key, position, class, record::json, cause, sqlstate, attempts
               FROM unnest($4::int8[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::int4[])
                 AS v(off, tbl, key, position, class, record, cause, sqlstate, attempts)
               ON CONFLICT (grp, topic, part, off) DO NOTHING";
    let text = |of: fn(&Parked) -> String| parked.iter().map(of).collect::<Vec<_>>();
    of_partition(sqlx::query(sql), group, partition)
        .bind(parked.iter().map(|it| it.offset).collect::<Vec<_>>())
        .bind(text(|it| it.table.to_string()))
        .bind(text(|it| String::from_utf8_lossy(&it.key).into_owned()))
        .bind(text(|it| it.position.clone()))
        .bind(text(|it| it.class.to_string()))
        .bind(text(|it| it.record.clone()))
        .bind(text(|it| it.cause.clone()))
        .bind(parked.iter().map(|it| it.sqlstate.clone()).collect::<Vec<_>>())
        .bind(parked.iter().map(|it| it.attempts).collect::<Vec<_>>())
        .execute(connection)
        .await
        .map(drop)
}

/// Forgets what was set aside of keys.
pub(super) async fn free(
    connection: &mut PgConnection,
    group: &str,
    partition: &Partition,
    keys: &[(TableName, Vec<u8>)],
) -> Result<(), sqlx::Error> {
    if keys.is_empty() {
        return Ok(());
    }
    let sql = "DELETE FROM tributary.parked p USING unnest($4::text[], $5::text[]) v (tbl, key)
               WHERE p.grp = $1 AND p.topic = $2 AND p.part = $3 AND p.tbl = v.tbl AND p.key = v.key";
    of_partition(sqlx::query(sql), group, partition)
        .bind(keys.iter().map(|(table, _)| table.to_string()).collect::<Vec<_>>())
        .bind(keys.iter().map(|(_, key)| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>())
        .execute(connection)
        .await
        .map(drop)
}

/// Whether the partition is inside a load of the table.
pub(super) async fn is_loading(
    connection: &mut PgConnection,
    group: &str,
    partition: &Partition,
    table: &TableName,
) -> Result<bool, sqlx::Error> {
    let sql = "SELECT EXISTS (SELECT FROM tributary.loading WHERE grp = $1 AND topic = $2 AND part = $3 AND tbl = $4)";
    let row = of_partition(sqlx::query(sql), group, partition).bind(table.to_string()).fetch_one(connection).await?;
    Ok(row.get(0))
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Binds the three columns that every table of ours begins with.
pub(super) fn of_partition<'q>(query: Query<'q>, group: &'q str, partition: &'q Partition) -> Query<'q> {
    query.bind(group).bind(&*partition.topic).bind(partition.number)
}

fn progress(row: &PgRow, first: usize) -> Result<Progress, sqlx::Error> {
    let position: Position = row
        .get::<&str, _>(first + 3)
        .parse()
        .map_err(|error: schemas::position::ParseError| sqlx::Error::Decode(error.into()))?;
    Ok(Progress {
        next_offset: row.get(first),
        last_offset: row.get(first + 1),
        seq: Seq(row.get::<i64, _>(first + 2).cast_unsigned()),
        position,
    })
}
