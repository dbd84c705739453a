//! Transactions that hold a lock under which rows are written, and the wait for those that held one at some moment.
//!
//! Whoever has begun to write a table before it was published may go on writing it afterwards: what he wrote first is not
//! in the stream, and a copy made before he commits does not show it either. PostgreSQL waits in the same way before it
//! builds an index concurrently.

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::Error;
use postgres::tokio_postgres::Client;

/// How often it is asked who still holds a lock. PostgreSQL tells nobody.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Who holds which lock. A prepared transaction has no process any more, but a lock on its own id.
const HOLDERS: &str = "
    SELECT DISTINCT l.virtualtransaction, l.pid, coalesce(p.gid, '')
    FROM pg_locks l
    LEFT JOIN pg_locks own ON l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
                          AND own.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
    WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
      AND CASE WHEN $1::oid[] IS NULL THEN l.relation >= 16384
               ELSE l.relation = ANY ($1) OR l.relation IN (SELECT t.relid::oid FROM unnest($1) o, pg_partition_tree(o) t) END";

/// A transaction that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    /// PostgreSQL's name for the transaction in its list of locks.
    id: String,
    /// How a person finds it.
    called: String,
    /// Whether it is prepared, and waits for whoever commits it.
    is_prepared: bool,
}

/// Those that are still waited for.
#[derive(Debug, Default)]
struct Awaited {
    /// By id: how a person finds them.
    holders: BTreeMap<String, String>,
    /// Prepared ones that were there in the last look, whether or not they are waited for.
    prepared: Vec<String>,
    begun: bool,
}

impl Awaited {
    /// Another look. `true` once nobody is waited for any more.
    fn is_over(&mut self, now: &[Holder]) -> bool {
        let was = self.holders.len();
        let is_there = |id: &String| now.iter().any(|holder| holder.id == *id);
        self.holders.retain(|id, _| is_there(id));
        // Whoever prepares may go on under another id (14.0 does that): one that left may be one that appeared.
        let has_left = self.holders.len() < was;
        for holder in now {
            let appeared = has_left && holder.is_prepared && !self.prepared.contains(&holder.id);
            if !self.begun || appeared {
                self.holders.insert(holder.id.clone(), holder.called.clone());
            }
        }
        self.begun = true;
        self.prepared = now.iter().filter(|holder| holder.is_prepared).map(|holder| holder.id.clone()).collect();
        self.holders.is_empty()
    }
}

/// Waits until all transactions have ended that hold a write lock now: on one of these tables or a partition of it, or, with
/// none named, on any table of the database. Says in the log who is waited for; `why` completes the sentence.
pub async fn wait(client: &Client, tables: Option<&[u32]>, why: &str) -> Result<(), Error> {
    let mut awaited = Awaited::default();
    let mut told = String::new();
    loop {
        let rows = client.query(HOLDERS, &[&tables]).await;
        let rows = rows.map_err(|cause| Error::statement("look at who holds locks", cause))?;
        let holder = |row: &postgres::tokio_postgres::Row| {
            let (id, pid, gid): (String, Option<i32>, String) = (row.get(0), row.get(1), row.get(2));
            let called = pid.map_or_else(|| format!("prepared transaction {gid:?}"), |pid| format!("PID {pid}"));
            Holder { id, called, is_prepared: pid.is_none() }
        };
        if awaited.is_over(&rows.iter().map(holder).collect::<Vec<_>>()) {
            return Ok(());
        }
        let names = awaited.holders.values().cloned().collect::<Vec<_>>().join(", ");
        if names != told {
            tracing::info!("waiting for transactions that began to write before, {why}: {names}");
            told = names;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(id: &str) -> Holder {
        Holder { id: id.into(), called: format!("PID {id}"), is_prepared: id.starts_with('-') }
    }

    fn check(looks: &[&[&str]], over: bool) {
        let mut awaited = Awaited::default();
        let mut last = false;
        for look in looks {
            assert!(!last, "it was over before: {looks:?}");
            last = awaited.is_over(&look.iter().map(|id| holder(id)).collect::<Vec<_>>());
        }
        assert_eq!(last, over, "{looks:?}");
    }

    #[test]
    fn only_those_of_the_first_look_are_waited_for() {
        check(&[&[]], true);
        check(&[&["1/1"]], false);
        check(&[&["1/1", "2/1"], &["2/1", "3/1"], &["3/1"]], true);
        check(&[&["1/1"], &["1/2"]], true);
    }

    #[test]
    fn one_that_was_prepared_meanwhile_is_still_the_same() {
        check(&[&["-1/7"], &["-1/7"]], false);
        check(&[&["1/1"], &["-1/7"]], false);
        check(&[&["1/1"], &["-1/7"], &[]], true);
        check(&[&["1/1", "-1/6"], &["1/1", "-1/7"], &["1/1", "-1/7"], &["-1/7"]], false);
        check(&[&["1/1"], &["1/1", "-1/7"], &["-1/7"]], true);
    }
}
