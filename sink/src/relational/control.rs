//! Control events on a relational target: loads begin and end, tables change. What cannot be carried stops with its remedy.

use postgres::quote;
use schemas::event::{Control, LoadMode};
use schemas::{CONTRACT, TableName};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use super::Relational;
use super::progress::of_partition;
use crate::batch::Batch;
use crate::error::Error;
use crate::record::Partition;

impl Relational {
    /// Does what a control event asks, inside the transaction that moves progress past it.
    pub(super) async fn control(
        &self,
        connection: &mut PgConnection,
        partition: &Partition,
        batch: &Batch,
        control: &Control,
    ) -> Result<(), Error> {
        let offset = batch.to.last_offset;
        let here = control.tables().iter().filter(|table| *table.topic == *partition.topic);
        let here = here.map(|table| TableName::new(&table.schema, &table.table));
        // A topic may hold tables that this group does not take.
        let (tables, others): (Vec<_>, Vec<_>) = here.partition(|table| self.catalog.takes(table));
        self.pass_over(connection, partition, &others).await?;
        if tables.is_empty() {
            return Ok(());
        }
        self.catalog.add(tables.iter().cloned());
        match control {
            Control::LoadBegin { load, contract, mode, .. } => {
                if *contract > CONTRACT {
                    let partition = partition.clone();
                    return Err(Error::Contract { partition, offset, found: *contract, known: CONTRACT });
                }
                for table in &tables {
                    self.load_begin(connection, partition, batch, table, load, *mode).await?;
                }
                Ok(())
            }
            Control::LoadEnd { load, .. } => self.load_end(connection, partition, load, &tables).await,
            Control::Schema { key, previous_key, columns, .. } => {
                for table in tables {
                    if previous_key.as_ref().is_some_and(|previous| previous != key) {
                        let (partition, key, step_over) =
                            (partition.clone(), key.join(", "), self.step_over(partition, batch));
                        return Err(Error::KeyChanged { partition, offset, table, key, step_over });
                    }
                    self.read_catalog_within(connection, std::slice::from_ref(&table)).await?;
                    let misfits = self.catalog.misfits(&table, columns, key);
                    if !misfits.is_empty() {
                        return Err(Error::Misfits { group: self.group.clone(), misfits });
                    }
                }
                Ok(())
            }
            // Of tables of ours it is carried out where all partitions meet.
            Control::Truncate { .. } => Ok(()),
        }
    }

    /// A first load must find nothing: rows that it does not bring would stay for ever. A sibling partition of the same
    /// topic may have brought rows before us: one that is inside this load, or behind its beginning, has had its look.
    async fn load_begin(
        &self,
        connection: &mut PgConnection,
        partition: &Partition,
        batch: &Batch,
        table: &TableName,
        load: &str,
        mode: LoadMode,
    ) -> Result<(), Error> {
        let failed = |cause| self.failed("begin a load", cause);
        // One partition at a time: the others' rows are committed before we look, or are not there yet.
        let sql = "SELECT pg_advisory_xact_lock(hashtextextended($1 || ' ' || $2, 0))";
        let lock = sqlx::query(sql).bind(&self.group).bind(&*partition.topic);
        lock.execute(&mut *connection).await.map_err(failed)?;
        // Loads of several tables can begin at one position, so behind it means behind all of them.
        let sql = "SELECT EXISTS (SELECT FROM tributary.progress
                                  WHERE grp = $1 AND topic = $2 AND part <> $3 AND position COLLATE \"C\" > $4)
                       OR EXISTS (SELECT FROM tributary.loading
                                  WHERE grp = $1 AND topic = $2 AND part <> $3 AND tbl = $5 AND load_id = $6)";
        let siblings = of_partition(sqlx::query(sql), &self.group, partition)
            .bind(batch.to.position.to_string())
            .bind(table.to_string())
            .bind(load)
            .fetch_one(&mut *connection)
            .await;
        if mode == LoadMode::First && !siblings.map_err(failed)?.get::<bool, _>(0) {
            let sql = format!("SELECT EXISTS (SELECT FROM {})", quote::table(table));
            let rows = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut *connection).await.map_err(failed)?;
            if rows.get(0) {
                let (partition, offset, table) = (partition.clone(), batch.to.last_offset, table.clone());
                return Err(Error::NotEmpty { partition, offset, table });
            }
        }
        let sql = "INSERT INTO tributary.loading (grp, topic, part, tbl, load_id) VALUES ($1, $2, $3, $4, $5)
                   ON CONFLICT (grp, topic, part, tbl) DO UPDATE SET load_id = excluded.load_id";
        let loading = of_partition(sqlx::query(sql), &self.group, partition).bind(table.to_string()).bind(load);
        loading.execute(&mut *connection).await.map_err(failed)?;
        tracing::info!(group = %self.group, %partition, %table, load, ?mode, "load begins");
        Ok(())
    }

    async fn load_end(
        &self,
        connection: &mut PgConnection,
        partition: &Partition,
        load: &str,
        tables: &[TableName],
    ) -> Result<(), Error> {
        // One load can be of several tables of a topic, and each ends by itself.
        let sql = "DELETE FROM tributary.loading
                   WHERE grp = $1 AND topic = $2 AND part = $3 AND load_id = $4 AND tbl = ANY ($5)";
        let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
        let ended = of_partition(sqlx::query(sql), &self.group, partition).bind(load).bind(&names);
        ended.execute(connection).await.map_err(|cause| self.failed("end a load", cause))?;
        tracing::info!(group = %self.group, %partition, tables = %names.join(", "), load, "load ends");
        Ok(())
    }

    /// Remembers tables of the topic that the group does not take. Should it take one later, what stands of it in front of
    /// the progress was never applied, and nothing else would tell.
    async fn pass_over(
        &self,
        connection: &mut PgConnection,
        partition: &Partition,
        tables: &[TableName],
    ) -> Result<(), Error> {
        if tables.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO tributary.passed_over (grp, topic, part, tbl) SELECT $1, $2, $3, unnest($4::text[])
                   ON CONFLICT DO NOTHING";
        let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
        let noted = of_partition(sqlx::query(sql), &self.group, partition).bind(&names).execute(connection).await;
        noted.map(drop).map_err(|cause| self.failed("pass over a table", cause))
    }

    /// The statement with which a person moves the partition past an event that he has carried out himself.
    fn step_over(&self, partition: &Partition, batch: &Batch) -> String {
        let to = batch.to;
        format!(
            "UPDATE tributary.progress SET next_offset = {}, last_offset = {}, seq = {}, position = {}, error = NULL \
             WHERE grp = {} AND topic = {} AND part = {} AND seq = {}",
            to.next_offset,
            to.last_offset,
            to.seq,
            quote::literal(&to.position.to_string()),
            quote::literal(&self.group),
            quote::literal(&partition.topic),
            partition.number,
            batch.from.seq,
        )
    }
}
