//! What can go wrong between PostgreSQL and Kafka, and where each failure leads.

use std::fmt;

use schemas::state::{HISTORY_MAX, Sent};
use schemas::{Lsn, Position, TableName};

use crate::keeper::Lost;
use crate::{columns, history, pgoutput, relation, state};

/// A failure of the source. It never parks anything: what it cannot read stops it, with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// PostgreSQL, or the way to it.
    #[error(transparent)]
    Postgres(#[from] postgres::Error),
    /// Kafka, or the way to it.
    #[error(transparent)]
    Kafka(#[from] kafka::Error),
    /// The records of the state topic make no state.
    #[error("cannot go on from {topic}")]
    State {
        /// The state topic.
        topic: String,
        /// What is wrong with it.
        #[source]
        cause: state::Error,
    },
    /// Something has to be mended or decided by a person before anything is touched.
    #[error("the source cannot start:{}", list(.0))]
    Unready(Vec<String>),
    /// What is published is no longer, or not wholly, in the stream.
    #[error("changes are missing from the stream:{}", list(.0))]
    Unsent(Vec<String>),
    /// Rows changed without being sent, and nobody has said what to do then.
    #[error(
        "rows of {table} have changed without being sent: {what}. Set source.on_rewrite = \"reload\" to load the table again, or \"continue\" if the same was done in the targets, and start again (it can be set back afterwards); or start under a new prefix"
    )]
    Rewritten {
        /// The table.
        table: TableName,
        /// What has happened.
        what: String,
    },
    /// The state speaks of another server, database or slot.
    #[error(
        "{topic} was written for {recorded}, but this is {found}: point the configuration at the right one, or use another prefix"
    )]
    OtherSource {
        /// The state topic.
        topic: String,
        /// What the state says.
        recorded: String,
        /// What is configured or connected.
        found: String,
    },
    /// The slot was confirmed beyond what stands in Kafka.
    #[error(
        "the slot {slot} stands at {confirmed}, but only what lies before {flushed} is known to be in Kafka: it was dropped and made again, or somebody else read from it, and changes are lost to us; load again under a new prefix"
    )]
    SlotAhead {
        /// The slot.
        slot: String,
        /// Where the slot stands.
        confirmed: Lsn,
        /// What the state says.
        flushed: Lsn,
    },
    /// The slot was dropped.
    #[error("the slot {slot} is gone, so changes since then are lost to us: load again under a new prefix")]
    SlotGone {
        /// The slot.
        slot: String,
    },
    /// Another's slot stands where ours was.
    #[error(
        "the slot {slot} is not the one that was published from: {why}; ours is gone, so changes since then are lost to us: load again under a new prefix"
    )]
    SlotForeign {
        /// The slot.
        slot: String,
        /// What makes it another's.
        why: String,
    },
    /// The server will never send what the slot stands for.
    #[error("the slot {slot} is lost: {}; {}", .lost.why, .lost.remedy())]
    SlotLost {
        /// The slot.
        slot: String,
        /// Why.
        lost: Lost,
    },
    /// The server reads a change by the publications as they were when its transaction began, and one was not there.
    #[error(
        "the publication {publications} was not there when something was written that is still to be read: it was dropped, or made again; changes are missing, load again under a new prefix"
    )]
    PublicationGone {
        /// The publications that are streamed.
        publications: String,
        /// What the server says.
        #[source]
        cause: Box<postgres::Error>,
    },
    /// A standby was promoted that had not taken the slot along.
    #[error(
        "{server} has no slot {slot}: timeline {timeline} began on a standby that had not synchronised it, and what was committed around that moment is lost to us; load again under a new prefix, and before the next failover set source.failover = true and sync_replication_slots = on at the standby (PostgreSQL 17 and later)"
    )]
    SlotLeftBehind {
        /// The new primary.
        server: String,
        /// The slot.
        slot: String,
        /// The timeline that began with the promotion.
        timeline: u32,
    },
    /// The slot is there, but cannot be gone on with.
    #[error("cannot go on with the slot {slot}: it {what}; load again under a new prefix")]
    SlotUnusable {
        /// The slot.
        slot: String,
        /// Completes the sentence.
        what: String,
    },
    /// The server writes a timeline that did not come from the one that was published from.
    #[error(
        "{server} writes timeline {found}, which did not come out of timeline {recorded} that was published from: it is an old primary, or another branch; take it out of source.url, or make it a standby of the present primary (pg_rewind, pg_basebackup)"
    )]
    OtherTimeline {
        /// The server.
        server: String,
        /// What it writes.
        found: u32,
        /// What the state says.
        recorded: u32,
    },
    /// The server has less than what was published.
    #[error(
        "the server's WAL ends at {end}, before {published} that was published: it was restored from an older state; load again under a new prefix"
    )]
    Behind {
        /// The server's end of WAL.
        end: Lsn,
        /// The state's position.
        published: Position,
    },
    /// After a failover the new primary lacks something that was published.
    #[error(
        "timeline {timeline} of the server branched off at {at}, before {published} that was published: the new primary never had {}; take these events back by hand where they went, then load again under a new prefix; with synchronized_standby_slots at the primary (PostgreSQL 17 and later) nothing is published that a standby lacks", Transactions(.lost)
    )]
    Diverged {
        /// The server's timeline.
        timeline: u32,
        /// Where it left ours.
        at: Lsn,
        /// The state's position.
        published: Position,
        /// The transactions that it never had, as far as they are remembered.
        lost: Vec<Sent>,
    },
    /// What is sent again is not what was published.
    #[error(
        "this is another history than the one that was published; the server was restored: load again under a new prefix"
    )]
    OtherHistory(#[source] history::Mismatch),
    /// A topic is not what it was.
    #[error("the topic {topic} {fault}")]
    Topic {
        /// The topic.
        topic: String,
        /// What is wrong with it, and what to do.
        fault: String,
    },
    /// A table cannot be published.
    #[error("cannot publish {table}")]
    NoKey {
        /// The table.
        table: TableName,
        /// Why.
        #[source]
        cause: relation::NoKey,
    },
    /// A row that its topic does not take. Going on without it would be a loss.
    #[error("cannot publish the row of {table} with the key {key}")]
    RowTooLarge {
        /// The table.
        table: TableName,
        /// The record's key, cut where it is long.
        key: String,
        /// How large it is, and what to do.
        #[source]
        cause: Box<kafka::Error>,
    },
    /// A table's columns cannot be hidden as they are to be.
    #[error("cannot publish {table}")]
    Hidden {
        /// The table.
        table: TableName,
        /// Why.
        #[source]
        cause: columns::Fault,
    },
    /// The key's type changed so that rows would go to other partitions than before.
    #[error(
        "the key of {table} changed its type so that later changes of a row would stand in another partition than earlier ones: start under a new prefix"
    )]
    Rerouted {
        /// The table.
        table: TableName,
    },
    /// The server is in recovery: the wrong one, or a failover is under way.
    #[error("{0} is a standby: connect to the primary, or wait until it is promoted")]
    Standby(String),
    /// A part of the source died of its own mistake.
    #[error("{0} ended unexpectedly: report this, with the log before it")]
    Panicked(&'static str),
    /// The stream breaks its form.
    #[error("cannot read the replication stream at {at}")]
    Stream {
        /// Where.
        at: Lsn,
        /// What is wrong.
        #[source]
        cause: pgoutput::Malformed,
    },
    /// A row came without the description that must stand before it.
    #[error(
        "the replication stream has a row of relation {oid} at {at} before its description: report this, with the server's version"
    )]
    RowBeforeRelation {
        /// The relation's OID.
        oid: u32,
        /// Where.
        at: Lsn,
    },
    /// A change stands outside of a transaction.
    #[error(
        "the replication stream has a change at {0} outside of a transaction: report this, with the server's version"
    )]
    OutsideTransaction(Lsn),
    /// A row lacks its key or has another number of columns than its relation.
    #[error("a row of {table} at {at} lacks its key or a column: report this, with the server's version")]
    IncompleteRow {
        /// The table.
        table: TableName,
        /// Where.
        at: Lsn,
    },
    /// A key that was promised to tell rows apart is NULL.
    #[error(
        "a row of {table} at {at} has NULL in {column:?}, a column of the key that source.keys names, and rows without a key cannot be published: take {table} out of source.tables and start (what is left of it in the stream is then passed over), give the row a value, ALTER TABLE … ALTER {column} SET NOT NULL, and list the table again: it is loaded anew"
    )]
    NullKey {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
        /// Where.
        at: Lsn,
    },
    /// A value cannot stand in JSON.
    #[error(
        "a value of {table}, column {column:?}, at {at} is not UTF-8, so no event can hold it: a database with the encoding SQL_ASCII and, before PostgreSQL 16, the type \"char\" take such bytes; mend the value and leave the column out of the publication until what was written before is past, or begin anew under another prefix"
    )]
    NotText {
        /// The table.
        table: TableName,
        /// The column.
        column: String,
        /// Where.
        at: Lsn,
    },
    /// A deleted row is not named.
    #[error(
        "a delete in {table} at {at} does not name its row: its replica identity was NOTHING at that moment; set it back, and load the table again under a new prefix"
    )]
    NoOldKey {
        /// The table.
        table: TableName,
        /// Where.
        at: Lsn,
    },
    /// A table of ours has a topic that the state does not know.
    #[error("the state does not know the topic {0}: report this")]
    UnknownTopic(String),
    /// A table went away before its load was done.
    #[error(
        "the table {table} was dropped while it was loaded: take it out of source.tables and start under a new prefix"
    )]
    Dropped {
        /// The table.
        table: TableName,
    },
    /// A value of a chunk breaks COPY's form.
    #[error("cannot read a row that COPY sent of {0}: report this, with the server's version")]
    Copy(TableName),
    /// The thread of the stream or of the publisher could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// No failure: what stands is committed, and the session ends so that the next one begins from it. Why, in words.
    #[error("{0}")]
    Again(String),
    /// A test wants to see what follows.
    #[error(transparent)]
    Failpoint(#[from] service::failpoint::Injected),
    /// We were asked to stop.
    #[error("stopped")]
    Stopped,
}

/// Where a failure leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It may pass: drop producer and walsender, back off, begin again from what is committed.
    Transient,
    /// Going on would be wrong: stop, and tell a person what to do.
    Fatal,
    /// No failure: drop producer and walsender, and begin again at once from what is committed.
    Again,
    /// No failure: we were asked to.
    Stop,
}

impl Error {
    /// A relation that cannot be published by its rule.
    pub(crate) fn hidden(described: &pgoutput::Relation, cause: columns::Fault) -> Error {
        Error::Hidden { table: TableName::new(&described.schema, &described.table), cause }
    }

    /// The only place in this crate that decides where a failure leads.
    pub fn severity(&self) -> Severity {
        match self {
            Error::Stopped => Severity::Stop,
            Error::Again(_) => Severity::Again,
            Error::Kafka(error) if error.is_stop() => Severity::Stop,
            Error::Standby(_) | Error::Failpoint(_) => Severity::Transient,
            Error::Kafka(error) if error.is_transient() => Severity::Transient,
            Error::Postgres(error) if error.severity() == postgres::sqlstate::Severity::Transient => {
                Severity::Transient
            }
            _ => Severity::Fatal,
        }
    }
}

/// Names transactions as their events do: by the commit in the header `position`, and `source.txId`.
struct Transactions<'s>(&'s [Sent]);

impl fmt::Display for Transactions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All that is remembered is among them: then there may be more.
        let more = if self.0.len() >= HISTORY_MAX { "at least " } else { "" };
        write!(f, "{more}the transactions")?;
        self.0.iter().try_for_each(|Sent(commit, xid, _)| write!(f, "\n  - commit {commit}, txId {xid}"))
    }
}

fn list(items: &[String]) -> String {
    items.iter().map(|item| format!("\n  - {item}")).collect()
}
