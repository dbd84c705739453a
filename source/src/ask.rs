//! What an operator's command asks of a source that runs elsewhere, and of its server: commands in the stream, and keys as
//! the server reads them.
//!
//! I/O only. What a command means is decided where the stream is read.

use postgres::Error;
use postgres::settings::application_name;
use postgres::tokio_postgres::Client;
use schemas::state::{Sent, Stream};
use schemas::{Lsn, TableName};

use crate::command::Command;
use crate::keys::Named;
use crate::relation::Relation;
use crate::sorted::Sorting;
use crate::start::message_prefix;
use crate::{catalog, relist, setup};

/// A new id for a command, and the load that it begins.
pub fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// A command that stands in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where its message ends; its commit comes behind it.
    pub message: Lsn,
    /// A place behind its commit: a source whose state is flushed as far as this has met the command.
    pub at: Lsn,
    /// Its transaction.
    pub xid: u32,
}

impl Written {
    /// Whether the source that has met it has acted on it, by the stream's record of then. `None` where so much has happened
    /// since that the record does not tell any more.
    pub fn is_followed(&self, stream: &Stream) -> Option<bool> {
        let is_ours = |sent: &Sent| sent.1 == self.xid && (self.message..=self.at).contains(&sent.0);
        if stream.history.iter().any(is_ours) {
            return Some(true);
        }
        // What was acted on first is forgotten first, and all of it where another list has begun.
        let may_be_forgotten = stream.history.first().is_some_and(|oldest| oldest.0 > self.message);
        if may_be_forgotten { None } else { Some(false) }
    }
}

/// Writes a command into the stream that is read through `slot`, sealed by the state's key where it has one. It does not
/// wait for a synchronous standby: one that is away would hold it, and whoever waits for the answer, without a word.
pub async fn order(client: &Client, slot: &str, command: &Command, seal_key: Option<&str>) -> Result<Written, Error> {
    const OPERATION: &str = "write a command into the stream";
    let message = seal_key.map_or_else(|| command.message(), |key| command.sealed(key));
    let query =
        "SELECT set_config('synchronous_commit', 'local', true), pg_logical_emit_message(true, $1, $2::text)::text,
                        pg_current_xact_id()::text";
    let row = client.query_one(query, &[&message_prefix(slot), &message]).await;
    let row = row.map_err(|cause| Error::statement(OPERATION, cause))?;
    let (place, transaction): (String, String) = (row.get(1), row.get(2));
    let read = place.parse().ok().zip(transaction.parse::<u64>().ok());
    let unread = || Error::Protocol { operation: OPERATION.into(), what: "no place, or no transaction".into() };
    let (message, transaction) = read.ok_or_else(unread)?;
    // The stream knows the lower half of it alone.
    let xid = (transaction & u64::from(u32::MAX)) as u32;
    Ok(Written { message, at: setup::wal_end(client).await?, xid })
}

/// Whether a source is on its way to another list of tables: then it has this session on its server.
pub async fn is_going_over(client: &Client) -> Result<bool, Error> {
    let query =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())";
    let found = client.query_one(query, &[&application_name(relist::PURPOSE)]).await;
    Ok(found.map_err(|cause| Error::statement("look for a source that changes its list", cause))?.get(0))
}

/// Where the server's WAL ends, with something behind it: so a source that runs gets beyond it though nobody else writes.
pub async fn mark(client: &Client) -> Result<Lsn, Error> {
    let end = setup::wal_end(client).await?;
    let query = "SELECT set_config('synchronous_commit', 'local', true), pg_current_xact_id()::text";
    client.query_one(query, &[]).await.map_err(|cause| Error::statement("write into the WAL", cause))?;
    Ok(end)
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
    let (sorting, rows) = sorting(client, publication, oid).await?;
    let found = client.simple_query(&sorting.in_front_of(&rows, key)).await.map_err(failed)?;
    Ok(catalog::texts(&found).next())
}

/// Whether a range has any room: its first key is not behind its last one, in the order in which the table is read.
pub async fn is_range(
    client: &Client,
    publication: &str,
    oid: u32,
    from: &[String],
    upto: &[String],
) -> Result<bool, crate::Error> {
    let failed = |cause| Error::statement("compare the ends of a range", cause);
    let (sorting, rows) = sorting(client, publication, oid).await?;
    let found = client.query_one(&sorting.is_upto(&rows, from, upto), &[]).await.map_err(failed)?;
    Ok(found.get::<_, Option<bool>>(0).unwrap_or(false))
}

/// How a table is read, and what it is called where its rows are.
async fn sorting(client: &Client, publication: &str, oid: u32) -> Result<(Sorting, String), crate::Error> {
    let failed = |cause| Error::statement("ask for the server's version", cause);
    let version = client.query_one("SELECT current_setting('server_version_num')::int4", &[]).await.map_err(failed)?;
    let described = catalog::describe(client, version.get::<_, i32>(0).unsigned_abs(), oid, publication).await?;
    let details = catalog::details(client, &described, &Named::default()).await?;
    let table = TableName::new(&described.schema, &described.table);
    let relation = Relation::new(&described, &details, "", "");
    let relation = relation.map_err(|cause| crate::Error::NoKey { table: table.clone(), cause })?;
    let rows = catalog::rows_of(client, oid).await?.ok_or(crate::Error::Dropped { table })?;
    Ok((relation.sorting, rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::state;

    #[test]
    fn the_history_tells_whether_a_command_was_followed_as_long_as_it_reaches_back() {
        let written = Written { message: Lsn(500), at: Lsn(600), xid: 7 };
        let check = |history: &[Sent], expected: Option<bool>| {
            let stream = Stream { history: history.to_vec(), ..state().stream };
            assert_eq!(written.is_followed(&stream), expected, "{history:?}");
        };
        check(&[], Some(false));
        check(&[Sent(Lsn(100), 3, 0)], Some(false));
        check(&[Sent(Lsn(100), 3, 0), Sent(Lsn(550), 7, 0), Sent(Lsn(700), 9, 0)], Some(true));
        check(&[Sent(Lsn(100), 7, 0)], Some(false));
        check(&[Sent(Lsn(700), 9, 0)], None);
    }
}
