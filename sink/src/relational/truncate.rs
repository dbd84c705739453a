//! A truncate, carried out when all partitions of its tables stand still in front of it: what comes before it in any of them
//! is applied by then, and nothing of what comes behind.
//!
//!     arrive ──▶ all there? ──▶ no: nothing is kept but the arrival, and it is asked again
//!                    └──▶ yes: the first to see it truncates ──▶ each steps over ──▶ the last takes the hold away
//!
//! Arrivals are durable: after a restart, or with another owner, the record is simply met again. No lease is needed, since
//! nobody chose the place: it stands in the topics.

use std::collections::BTreeSet;

use postgres::quote;
use schemas::event::ControlTable;
use schemas::{Position, TableName};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor, Row};

use super::progress::of_partition;
use super::{Moved, Relational};
use crate::batch::Batch;
use crate::error::Error;
use crate::target::{Claim, Done, Outcome};

/// Where the partitions meet, and which.
struct Meeting {
    id: String,
    /// The tables that the group takes.
    tables: Vec<TableName>,
    topics: Vec<String>,
    /// How many partitions there are in these topics.
    expected: i64,
}

impl Meeting {
    /// `None` if the group takes none of the tables.
    fn of(
        group: &str,
        position: Position,
        tables: &[ControlTable],
        takes: impl Fn(&TableName) -> bool,
    ) -> Option<Meeting> {
        let taken = tables.iter().filter(|it| takes(&TableName::new(&it.schema, &it.table)));
        let taken: Vec<&ControlTable> = taken.collect();
        let topics: BTreeSet<(&str, i32)> = taken.iter().map(|it| (it.topic.as_str(), it.partitions)).collect();
        let tables: Vec<TableName> = taken.iter().map(|it| TableName::new(&it.schema, &it.table)).collect();
        // Several truncates can stand at one position: those of loads that begin together.
        let id = format!("truncate/{group}/{position}/{}", names(&tables));
        let expected = topics.iter().map(|(_, partitions)| i64::from(*partitions)).sum();
        let topics = topics.iter().map(|(topic, _)| (*topic).to_owned()).collect();
        (!tables.is_empty()).then_some(Meeting { id, tables, topics, expected })
    }

    /// Whether a topic's partitions meet here. The event stands in the topics of all its tables, also in those where it speaks
    /// of others' tables alone, and such a partition must not stand in for one that is missed.
    fn is_of(&self, topic: &str) -> bool {
        self.topics.iter().any(|it| it == topic)
    }
}

impl Relational {
    /// Truncates the tables, or waits for those who are to stand still with us. `None` if the group takes none of them, or
    /// none of those in this topic.
    pub(super) async fn truncate(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        batch: &Batch,
        tables: &[ControlTable],
    ) -> Result<Option<Outcome>, Error> {
        let takes = |table: &TableName| self.catalog.takes(table);
        let Some(meeting) = Meeting::of(&self.group, batch.to.position, tables, takes) else { return Ok(None) };
        if !meeting.is_of(&claim.partition.topic) {
            return Ok(None);
        }
        let failed = |cause| self.failed("truncate", cause);
        let is_new = self.arrive(connection, claim, batch, &meeting).await.map_err(failed)?;
        match self.begin(connection, claim, batch).await? {
            Moved::Ours => {}
            Moved::Done => return Ok(Some(Outcome::Done(Done { unsure: true, ..Done::default() }))),
            Moved::Lost => return Ok(Some(Outcome::Lost)),
        }
        if !self.all_stand(connection, &meeting).await.map_err(failed)? {
            connection.execute("ROLLBACK").await.map_err(failed)?;
            if is_new {
                let (group, tables) = (&self.group, names(&meeting.tables));
                tracing::info!(%group, partition = %claim.partition, %tables, "stands at a truncate until the other partitions do");
            }
            return Ok(Some(Outcome::Waits));
        }
        self.step_over_truncate(connection, claim, &meeting).await.map_err(failed)?;
        connection.execute("COMMIT").await.map_err(failed)?;
        // What was parked of these tables is gone.
        Ok(Some(Outcome::Done(Done { unsure: true, ..Done::default() })))
    }

    /// Says that the partition stands here, in a transaction of its own. Whether it had not said so before.
    async fn arrive(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        batch: &Batch,
        meeting: &Meeting,
    ) -> Result<bool, sqlx::Error> {
        connection.execute("BEGIN").await?;
        // The row is locked to the end: whoever takes the partition over waits, and arrives anew.
        let sql = "SELECT FROM tributary.progress
                   WHERE grp = $1 AND topic = $2 AND part = $3 AND claim = $4 AND next_offset = $5 FOR UPDATE";
        let stands = of_partition(sqlx::query(sql), &self.group, &claim.partition)
            .bind(claim.number)
            .bind(batch.from.next_offset)
            .fetch_optional(&mut *connection)
            .await?;
        if stands.is_none() {
            connection.execute("ROLLBACK").await?;
            return Ok(false);
        }
        let sql =
            "INSERT INTO tributary.hold (id, grp, kind, at, topics, created_by) VALUES ($1, $2, 'truncate', $3, $4, $5)
                   ON CONFLICT (id) DO NOTHING";
        sqlx::query(sql)
            .bind(&meeting.id)
            .bind(&self.group)
            .bind(batch.to.position.to_string())
            .bind(&meeting.topics)
            .bind(&self.owner)
            .execute(&mut *connection)
            .await?;
        let sql = "INSERT INTO tributary.arrival (hold, topic, part) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        let partition = &claim.partition;
        let arrived = of_partition(sqlx::query(sql), &meeting.id, partition).execute(&mut *connection).await?;
        connection.execute("COMMIT").await?;
        Ok(arrived.rows_affected() > 0)
    }

    /// Whether all partitions stand here. The hold is locked first, and arrivals counted in a statement of their own: of
    /// two that come last at the same time the second sees the first.
    async fn all_stand(&self, connection: &mut PgConnection, meeting: &Meeting) -> Result<bool, sqlx::Error> {
        let sql = "SELECT done_at IS NOT NULL FROM tributary.hold WHERE id = $1 FOR UPDATE";
        let hold = sqlx::query(sql).bind(&meeting.id).fetch_one(&mut *connection).await?;
        if hold.get(0) {
            return Ok(true);
        }
        let sql = "SELECT count(*) FROM tributary.arrival WHERE hold = $1 AND topic = ANY ($2)";
        let arrived = sqlx::query(sql).bind(&meeting.id).bind(&meeting.topics).fetch_one(&mut *connection).await?;
        if arrived.get::<i64, _>(0) < meeting.expected {
            return Ok(false);
        }
        for statement in emptying(connection, &meeting.tables).await? {
            connection.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await?;
        }
        let sql = "DELETE FROM tributary.parked WHERE grp = $1 AND topic = ANY ($2) AND tbl = ANY ($3)";
        let tables: Vec<String> = meeting.tables.iter().map(ToString::to_string).collect();
        sqlx::query(sql).bind(&self.group).bind(&meeting.topics).bind(&tables).execute(&mut *connection).await?;
        let sql = "UPDATE tributary.hold SET done_at = now() WHERE id = $1";
        sqlx::query(sql).bind(&meeting.id).execute(&mut *connection).await?;
        tracing::info!(group = %self.group, tables = %names(&meeting.tables), "truncated");
        Ok(true)
    }

    /// Takes our arrival away with the progress that moves past it, and with the last one the hold.
    async fn step_over_truncate(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        meeting: &Meeting,
    ) -> Result<(), sqlx::Error> {
        let sql = "DELETE FROM tributary.arrival WHERE hold = $1 AND topic = $2 AND part = $3";
        of_partition(sqlx::query(sql), &meeting.id, &claim.partition).execute(&mut *connection).await?;
        let sql =
            "DELETE FROM tributary.hold WHERE id = $1 AND NOT EXISTS (SELECT FROM tributary.arrival WHERE hold = $1)";
        sqlx::query(sql).bind(&meeting.id).execute(&mut *connection).await.map(drop)
    }
}

/// What empties these tables. Where TRUNCATE is not granted, or another table refers to one of them, the rows are deleted.
/// Sequences stay: values come from the source. Of a plain table its own rows alone are meant: what inherits from it was
/// truncated by its own name.
async fn emptying(connection: &mut PgConnection, tables: &[TableName]) -> Result<Vec<String>, sqlx::Error> {
    const QUERY: &str = "
        SELECT c.relkind = 'p',
               pg_catalog.has_table_privilege(c.oid, 'TRUNCATE')
               AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k
                               WHERE k.contype = 'f' AND k.confrelid = c.oid
                                 AND k.conrelid <> ALL ($2::text[]::regclass[]::oid[]))
        FROM pg_catalog.pg_class c WHERE c.oid = $1::text::regclass";
    let quoted: Vec<String> = tables.iter().map(quote::table).collect();
    let (mut truncated, mut statements) = (Vec::new(), Vec::new());
    for table in &quoted {
        let row = sqlx::query(QUERY).bind(table).bind(&quoted).fetch_one(&mut *connection).await?;
        let only = if row.get(0) { "" } else { "ONLY " };
        if row.get(1) {
            truncated.push(format!("{only}{table}"));
        } else {
            statements.push(format!("DELETE FROM {only}{table}"));
        }
    }
    if !truncated.is_empty() {
        statements.push(format!("TRUNCATE {}", truncated.join(", ")));
    }
    Ok(statements)
}

fn names(tables: &[TableName]) -> String {
    tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use schemas::Lsn;

    use super::*;

    #[test]
    fn partitions_meet_that_hold_a_table_which_the_group_takes_and_no_others() {
        let place = Position { commit: Lsn(20), change: Lsn(10), n: 1 };
        let table = |name: &str, topic: &str, partitions| ControlTable {
            schema: "public".into(),
            table: name.into(),
            topic: topic.into(),
            partitions,
        };
        let event = [table("one", "own", 2), table("other", "shared", 3)];
        let of_one = Meeting::of("rdb", place, &event, |table| table.table == "one").expect("one is taken");
        assert_eq!((of_one.expected, of_one.is_of("own"), of_one.is_of("shared")), (2, true, false));
        let of_both = Meeting::of("rdb", place, &event, |_| true).expect("both are taken");
        assert_eq!((of_both.expected, of_both.is_of("own"), of_both.is_of("shared")), (5, true, true));
        assert!(Meeting::of("rdb", place, &event, |_| false).is_none());
    }
}
