//! Counting the rows of one side, in one snapshot.
//!
//! A table that is not there, or that we may not read, is a finding and not an error: the others are counted all the same.

use std::collections::BTreeMap;

use postgres::Client;
use postgres::quote;
use schemas::TableName;

use crate::error::Error;

/// One of the two databases.
pub(crate) struct Side {
    name: &'static str,
    client: Client,
    /// The publication's row filters by table: the target has only the rows that pass.
    filters: BTreeMap<TableName, String>,
}

/// The rows of a table, or why they could not be counted.
pub(crate) type Count = Result<u64, String>;

impl Side {
    pub(crate) async fn connect(
        name: &'static str,
        config: &postgres::Config,
        publication: Option<&str>,
    ) -> Result<Side, Error> {
        let client = postgres::connect(config, "verify").await.map_err(|cause| Error::Side { side: name, cause })?;
        let mut side = Side { name, client, filters: BTreeMap::new() };
        if let Some(publication) = publication {
            side.filters = side.row_filters(publication).await?;
        }
        Ok(side)
    }

    /// Counts each of `tables`, in their order.
    pub(crate) async fn count(&mut self, tables: &[TableName]) -> Result<Vec<Count>, Error> {
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let mut counts = Vec::with_capacity(tables.len());
        for table in tables {
            // Without one, the first table that cannot be read would end the transaction for all that follow.
            self.run("SAVEPOINT before").await?;
            let filter = self.filters.get(table).map(|filter| format!(" WHERE {filter}")).unwrap_or_default();
            let query = format!("SELECT count(*) FROM {}{filter}", quote::table(table));
            match self.client.query_one(&query, &[]).await {
                Ok(row) => counts.push(Ok(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))),
                Err(cause) => match cause.as_db_error() {
                    Some(answer) => {
                        counts.push(Err(answer.message().to_owned()));
                        self.run("ROLLBACK TO before").await?;
                    }
                    None => return Err(self.failed(format!("count the rows of {table}"), cause)),
                },
            }
        }
        self.run("COMMIT").await?;
        Ok(counts)
    }

    /// How many events are set aside for each table. None where no sink has ever run.
    pub(crate) async fn parked(&self) -> Result<BTreeMap<TableName, u64>, Error> {
        let operation = || "count the events that were set aside".to_owned();
        let there = self.client.query_one("SELECT to_regclass('tributary.parked') IS NOT NULL", &[]).await;
        if !there.map_err(|cause| self.failed(operation(), cause))?.get::<_, bool>(0) {
            return Ok(BTreeMap::new());
        }
        let rows = self.client.query("SELECT tbl, count(*) FROM tributary.parked GROUP BY tbl", &[]).await;
        let rows = rows.map_err(|cause| self.failed(operation(), cause))?;
        let parked = rows.iter().filter_map(|row| {
            let table = row.get::<_, &str>(0).parse().ok()?;
            Some((table, u64::try_from(row.get::<_, i64>(1)).unwrap_or(0)))
        });
        Ok(parked.collect())
    }

    async fn row_filters(&self, publication: &str) -> Result<BTreeMap<TableName, String>, Error> {
        // Before 15 there are none, and no such column.
        const QUERY: &str = "
            SELECT schemaname::text, tablename::text, to_jsonb(t) ->> 'rowfilter' FROM pg_publication_tables t
            WHERE pubname = $1 AND to_jsonb(t) ->> 'rowfilter' IS NOT NULL";
        let rows = self.client.query(QUERY, &[&publication]).await;
        let rows = rows.map_err(|cause| self.failed(format!("read the publication {publication}"), cause))?;
        let filter = |row: &postgres::tokio_postgres::Row| {
            (TableName::new(row.get::<_, String>(0), row.get::<_, String>(1)), row.get(2))
        };
        Ok(rows.iter().map(filter).collect())
    }

    async fn run(&self, statement: &str) -> Result<(), Error> {
        let ran = self.client.batch_execute(statement).await;
        ran.map_err(|cause| self.failed("read a snapshot".to_owned(), cause))
    }

    fn failed(&self, operation: String, cause: postgres::tokio_postgres::Error) -> Error {
        Error::Side { side: self.name, cause: postgres::Error::statement(operation, cause) }
    }
}
