//! What an operator's command asks of a source that runs elsewhere, and of its server: commands in the stream, and keys as
//! the server reads them.
//!
//! I/O only. What a command means is decided where the stream is read.

use postgres::Error;
use postgres::tokio_postgres::Client;
use schemas::{Lsn, TableName};

use crate::catalog;
use crate::command::Command;
use crate::keys::Named;
use crate::relation::Relation;
use crate::start::message_prefix;

/// A new id for a command, and the load that it begins.
pub fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Writes a command into the stream that is read through `slot`, sealed by the state's secret where it has one. Returns a place in the WAL: a source whose state is flushed
/// beyond it has met the command.
pub async fn order(client: &Client, slot: &str, command: &Command, secret: Option<&str>) -> Result<Lsn, Error> {
    let written = |cause| Error::statement("write a command into the stream", cause);
    let query = "SELECT pg_logical_emit_message(true, $1, $2::text)::text";
    let message = secret.map_or_else(|| command.message(), |secret| command.sealed(secret));
    let row = client.query_one(query, &[&message_prefix(slot), &message]).await.map_err(written)?;
    let text: String = row.get(0);
    text.parse().map_err(|_| Error::Protocol { operation: "write a command into the stream".into(), what: text })
}

/// The columns of a table's key in the order of their index, in which the ends of a range are written.
pub async fn key_order(client: &Client, oid: u32) -> Result<Vec<String>, Error> {
    Ok(catalog::key_order(client, oid).await?.0)
}

/// The key in front of `key`, which need not be there, in the order in which the table is read; `None` where there is none.
/// With it as an exclusive end a range takes in `key` itself.
pub async fn in_front_of(
    client: &Client,
    publication: &str,
    oid: u32,
    key: &[String],
) -> Result<Option<Vec<String>>, crate::Error> {
    let failed = |cause| Error::statement("look for the key in front of a range", cause);
    let version = client.query_one("SELECT current_setting('server_version_num')::int4", &[]).await.map_err(failed)?;
    let described = catalog::describe(client, version.get::<_, i32>(0).unsigned_abs(), oid, publication).await?;
    let details = catalog::details(client, &described, &Named::default()).await?;
    let table = TableName::new(&described.schema, &described.table);
    let relation = Relation::new(&described, &details, "", "");
    let relation = relation.map_err(|cause| crate::Error::NoKey { table: table.clone(), cause })?;
    let rows = catalog::rows_of(client, oid).await?.ok_or(crate::Error::Dropped { table })?;
    let found = client.simple_query(&relation.sorting.in_front_of(&rows, key)).await.map_err(failed)?;
    Ok(catalog::texts(&found).next())
}
