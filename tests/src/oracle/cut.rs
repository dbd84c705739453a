//! The tables as they were at one place in the WAL, and whether the topics, folded up to there, say the same.
//!
//!     temporary slot ─▶ its place X, and a snapshot of exactly the commits before X ─▶ rows ─▶ compared with the fold of all below X
//!
//! A new slot's snapshot shows transactions by the WAL, which is ahead of what the server calls committed: whoever reads it
//! at once marks their rows as never written. So a plain snapshot is asked for until it shows all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::tables::{self, Row};
use super::topic::{Fold, Records, Told};
use crate::servers::{PostgresAddress, Role};
use crate::table::Table;
use crate::{Error, place};

/// How long a slot may wait for transactions that are open, and its snapshot for what is not visible.
const MADE_WITHIN: Duration = Duration::from_secs(120);
/// How many differing rows a message names.
const SHOWN_MAX: usize = 10;

/// The tables as they were when everything before one place had been committed, and nothing behind it.
#[derive(Debug)]
pub struct Cut {
    /// That place: what is committed below it is in the rows.
    pub at: u64,
    /// The rows of each table, in the order in which they were asked for. None of one whose rows were no longer to be had:
    /// a snapshot older than a TRUNCATE, or than DDL that rewrites, is shown an empty table.
    tables: Vec<Option<Vec<Row>>>,
}

impl Cut {
    /// Takes one, through a slot of that name, which is gone afterwards. None where somebody else wanted the tables too, and each
    /// held what the other waited for.
    pub async fn take(
        server: &PostgresAddress,
        database: &str,
        slot: &str,
        tables: &[Table],
    ) -> Result<Option<Cut>, Error> {
        let exported = Exported::new(server, database, slot).await?;
        let reader = server.connect(Role::Superuser, database).await?;
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{}'",
            exported.snapshot
        );
        reader.batch_execute(&begin).await.map_err(Error::during("import a slot's snapshot"))?;
        let seen = snapshot(&reader).await?;
        let plain = server.connect(Role::Superuser, database).await?;
        let shown = tokio::time::timeout(MADE_WITHIN, until_shown(&plain, &seen)).await;
        shown.map_err(Error::during("wait until a slot's snapshot is visible"))??;
        for table in tables {
            if !lock(&reader, table).await? {
                return Ok(None);
            }
        }
        let mut read = Vec::new();
        for table in tables {
            read.push(rows(&reader, table).await?);
        }
        Ok(Some(Cut { at: exported.at, tables: read }))
    }
}

/// Asked for again and again: a plain snapshot shows all that this one does.
async fn until_shown(plain: &Client, seen: &Seen) -> Result<(), Error> {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    loop {
        ticks.tick().await;
        if seen.is_covered_by(&snapshot(plain).await?) {
            return Ok(());
        }
    }
}

/// Keeps everybody from giving the table other files. Whether we have it: not where we were the one to give in.
async fn lock(reader: &Client, table: &Table) -> Result<bool, Error> {
    let lock = format!("SET LOCAL lock_timeout = '20s'; LOCK TABLE {} IN ACCESS SHARE MODE", table.sql());
    match reader.batch_execute(&lock).await {
        Err(cause) if cause.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => Ok(false),
        locked => locked.map(|()| true).map_err(Error::during(lock)),
    }
}

/// The rows that a snapshot shows, unless the table has other files by now than it saw.
async fn rows(reader: &Client, table: &Table) -> Result<Option<Vec<Row>>, Error> {
    let name = table.sql();
    let same = "SELECT relfilenode = pg_relation_filenode(oid::regclass) FROM pg_class WHERE oid = $1::text::regclass";
    let same = reader.query_one(same, &[&name]).await.map_err(Error::during("look at a table's file"))?;
    if !same.get::<_, bool>(0) {
        return Ok(None);
    }
    tables::rows(reader, table).await.map(Some).map_err(Error::new)
}

/// A slot whose snapshot can be imported, for as long as this is kept.
struct Exported {
    at: u64,
    snapshot: String,
    /// The session that made it: `psql`, since only a replication connection may.
    _session: Child,
}

impl Exported {
    async fn new(server: &PostgresAddress, database: &str, slot: &str) -> Result<Exported, Error> {
        let (port, role) = (server.port, Role::Superuser);
        let to = format!("host=127.0.0.1 port={port} user={} dbname={database} replication=database", role.name());
        let mut command = Command::new(place::psql());
        command
            .args(["-X", "-A", "-t", "-q", &to])
            .env("PGPASSWORD", role.password())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut session = command.spawn().map_err(Error::during("run psql"))?;
        let (Some(mut input), Some(output), Some(mut errors)) =
            (session.stdin.take(), session.stdout.take(), session.stderr.take())
        else {
            return Err(Error::new("psql has no input or no output"));
        };
        let make = format!("CREATE_REPLICATION_SLOT \"{slot}\" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT;\n");
        input.write_all(make.as_bytes()).await.map_err(Error::during("write to psql"))?;
        let mut line = String::new();
        let mut output = BufReader::new(output);
        let read = tokio::time::timeout(MADE_WITHIN, output.read_line(&mut line)).await;
        let read = read.map_err(Error::during("wait for a slot with a snapshot: who has a transaction open?"))?;
        read.map_err(Error::during("read from psql"))?;
        // slot|place|snapshot|plugin
        let fields: Vec<&str> = line.trim_end().split('|').collect();
        let [_, at, snapshot, _] = fields[..] else {
            let mut told = String::new();
            // It has ended, or it would have answered: what it said is all there is to tell.
            let _ = tokio::time::timeout(Duration::from_secs(1), errors.read_to_string(&mut told)).await;
            return Err(Error::new(format!("no slot with a snapshot: {line}{told}")));
        };
        let (at, snapshot) = (lsn(at)?, snapshot.to_owned());
        // Closed, it would end, and the snapshot with it.
        session.stdin = Some(input);
        Ok(Exported { at, snapshot, _session: session })
    }
}

fn lsn(text: &str) -> Result<u64, Error> {
    let wrong = || Error::new(format!("{text:?} is no place in the WAL"));
    let (high, low) = text.split_once('/').ok_or_else(wrong)?;
    let part = |digits| u64::from_str_radix(digits, 16).map_err(|_| wrong());
    Ok(part(high)? << 32 | part(low)?)
}

/// What `pg_current_snapshot()` says. A slot's can have its xmin beyond its xmax, and is read by hand for that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    xmin: u64,
    xmax: u64,
    open: BTreeSet<u64>,
}

async fn snapshot(client: &Client) -> Result<Seen, Error> {
    let row = client.query_one("SELECT pg_current_snapshot()::text", &[]).await;
    let text: String = row.map_err(Error::during("ask for a snapshot"))?.get(0);
    Seen::read(&text).ok_or_else(|| Error::new(format!("{text:?} is no snapshot")))
}

impl Seen {
    fn read(text: &str) -> Option<Seen> {
        let mut parts = text.splitn(3, ':');
        let (xmin, xmax) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let open = parts.next()?.split(',').filter(|xid| !xid.is_empty()).map(|xid| xid.parse().ok());
        Some(Seen { xmin, xmax, open: open.collect::<Option<_>>()? })
    }

    fn shows(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && !self.open.contains(&xid))
    }

    fn is_covered_by(&self, other: &Seen) -> bool {
        (other.xmin..self.xmax.max(self.xmin)).all(|xid| !self.shows(xid) || other.shows(xid))
    }
}

/// When a table's rows were changed without being sent: somewhere between two places.
pub type Rewrite = (u64, u64);

/// How many tables were compared at all cuts together, and in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Their load had ended: the topic must hold the table, row by row.
    pub whole: usize,
    /// They were being loaded: each row that the topic holds by then must be the table's.
    pub loading: usize,
    /// Their rows were not to be had any more, or were changed without being sent and not loaded again by then.
    pub left_out: usize,
}

impl std::ops::AddAssign for Compared {
    fn add_assign(&mut self, other: Compared) {
        self.whole += other.whole;
        self.loading += other.loading;
        self.left_out += other.left_out;
    }
}

/// Whether one table's topic, folded up to each cut, is the table of that cut. `which` is its place among the cuts' tables.
pub fn compare(
    cuts: &[Cut],
    which: usize,
    table: &Table,
    rewrites: &[Rewrite],
    records: &Records,
) -> Result<Compared, String> {
    let mut in_order: Vec<&Cut> = cuts.iter().collect();
    in_order.sort_by_key(|cut| cut.at);
    let mut places =
        records.0.iter().map(|record| Ok((record.commit()?, record))).collect::<Result<Vec<_>, String>>()?;
    // Stable: each partition stays in its order, in which positions never fall.
    places.sort_by_key(|(commit, _)| *commit);
    let mut places = places.into_iter().peekable();
    let (mut fold, mut compared) = (Fold::default(), Compared::default());
    for cut in in_order {
        while let Some((_, record)) = places.next_if(|(commit, _)| *commit < cut.at) {
            fold.apply(record)?;
        }
        let since = fold.loaded_since();
        let is_stale = |(before, after): &Rewrite| cut.at > *before && since.is_none_or(|since| since < *after);
        let rows = cut.tables[which].as_ref().filter(|_| !rewrites.iter().any(is_stale));
        let Some(rows) = rows else {
            compared.left_out += 1;
            continue;
        };
        let whole = since.is_some();
        differing(table, rows, &fold, whole).map_err(|what| {
            let state = if whole { "loaded" } else { "being loaded" };
            format!("at {:X}, while it was {state}, the topic folded up to there is not the table: {what}", cut.at)
        })?;
        (compared.whole, compared.loading) =
            (compared.whole + usize::from(whole), compared.loading + usize::from(!whole));
    }
    Ok(compared)
}

fn differing(table: &Table, rows: &[Row], fold: &Fold, whole: bool) -> Result<(), String> {
    let key = |row: &Row| table.key.iter().map(|column| row.get(column).cloned().flatten()).collect::<Vec<_>>();
    let mut expected: BTreeMap<_, &Row> = rows.iter().map(|row| (key(row), row)).collect();
    let mut faults = Vec::new();
    for told in fold.rows() {
        match expected.remove(&key(told.row)) {
            None => faults.push(format!("it has {:?}, which is no row", told.row)),
            Some(row) if !is_same(row, told) => faults.push(format!("it has {:?} instead of {row:?}", told.row)),
            Some(_) => {}
        }
    }
    if whole {
        faults.extend(expected.values().map(|row| format!("it lacks {row:?}")));
    }
    if faults.is_empty() {
        return Ok(());
    }
    let shown: String = faults.iter().take(SHOWN_MAX).map(|fault| format!("\n    {fault:.600}")).collect();
    Err(format!("{} rows differ{shown}", faults.len()))
}

/// A column that the topic has not heard of is null until its first value comes.
fn is_same(row: &Row, told: Told<'_>) -> bool {
    let is_open = |column: &String| told.open.is_some_and(|open| open.contains(column));
    row.iter().all(|(column, value)| is_open(column) || told.row.get(column).cloned().flatten() == *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::topic::Record;

    #[test]
    fn a_slot_s_snapshot_waits_for_all_that_it_shows() {
        let read = |text| Seen::read(text).expect("a snapshot");
        let slot = read("105:110:107");
        assert!(slot.is_covered_by(&read("107:110:107")) && slot.is_covered_by(&read("112:112:")));
        assert!(!slot.is_covered_by(&read("107:110:107,109")) && !slot.is_covered_by(&read("107:109:107")));
        assert!(!read("120:110:").is_covered_by(&read("115:118:115")), "115 is shown by its xmin alone");
        assert_eq!(Seen::read("1:2"), None);
    }

    fn record(commit: u64, op: &str, rest: &str) -> Record {
        let mut record = Record { key: Some(r#"{"id":1}"#.into()), ..Record::default() };
        record.headers.insert("position".into(), format!("{commit:X}.0.1"));
        let (op, control) = op.split_once('!').unwrap_or((op, ""));
        if !control.is_empty() {
            record.key = None;
            record.headers.insert("control".into(), control.into());
        }
        record.value =
            Some(format!(r#"{{"op":"{op}","source":{{"snapshot":"false"}},"control":{{"load":"one"}}{rest}}}"#));
        record
    }

    fn row(name: &str) -> Row {
        Row::from([("id".to_owned(), Some("1".to_owned())), ("name".to_owned(), Some(name.to_owned()))])
    }

    fn check(rows: &[Row], at: u64, records: &[Record], rewrites: &[Rewrite]) -> Result<Compared, String> {
        let table = Table::new("public.t", &["id"], "");
        let cut = Cut { at, tables: vec![Some(rows.to_vec())] };
        compare(&[cut], 0, &table, rewrites, &Records(records.to_vec()))
    }

    #[test]
    fn a_topic_is_compared_up_to_the_cut_and_no_further() {
        let named = |name: &str| format!(r#","after":{{"id":1,"name":"{name}"}}"#);
        let records = [
            record(0x10, "m!load_begin", ""),
            record(0x18, "r", &named("a")),
            record(0x18, "m!load_end", ""),
            record(0x20, "u", &named("b")),
            record(0x30, "u", &named("c")),
        ];
        let whole = Ok(Compared { whole: 1, ..Compared::default() });
        assert_eq!(check(&[row("a")], 0x20, &records, &[]), whole);
        assert_eq!(check(&[row("b")], 0x21, &records, &[]), whole);
        check(&[row("a")], 0x21, &records, &[]).expect_err("b was committed before");
        check(&[], 0x21, &records, &[]).expect_err("there is no such row");
        let more = [row("b"), Row::from([("id".to_owned(), Some("2".to_owned()))])];
        check(&more, 0x21, &records, &[]).expect_err("a row is missing");
        assert_eq!(check(&more, 0x18, &records, &[]), Ok(Compared { loading: 1, ..Compared::default() }));
        let left_out = Ok(Compared { left_out: 1, ..Compared::default() });
        assert_eq!(check(&[row("z")], 0x21, &records, &[(0x11, 0x12)]), left_out);
        check(&[row("z")], 0x21, &records, &[(0x8, 0x9)]).expect_err("it was loaded since");
    }

    #[test]
    fn what_was_read_beside_the_stream_may_be_newer_than_its_place() {
        let moved = r#","after":{"id":1,"name":"later"},"reselected":["name"],"moved_from":{"id":9}"#;
        let records = [
            record(0x10, "m!load_begin", ""),
            record(0x18, "m!load_end", ""),
            record(0x20, "c", moved),
            record(0x30, "u", r#","after":{"id":1,"name":"sent"}"#),
        ];
        check(&[row("earlier")], 0x21, &records, &[]).expect("nobody knows better");
        check(&[row("earlier")], 0x31, &records, &[]).expect_err("by then it is sent");
    }
}
