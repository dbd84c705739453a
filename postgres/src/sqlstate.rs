//! What an SQLSTATE leads to: the one classification for all that PostgreSQL may answer.
//!
//! Pure. Who asks decides what "retry" means for him; nobody else decides whether.

/// Where a failure leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// May pass by itself: retried in order, for ever. What nobody has classified is here too, and loud.
    Transient,
    /// This event can never be applied: parked as dead.
    Permanent,
    /// A conflict that later events, or events of other partitions, may resolve: parked as undecided.
    Undecided,
    /// Going on would be wrong: stop, with a remedy.
    Fatal,
}

/// The severity of an SQLSTATE.
pub fn severity(code: &str) -> Severity {
    use Severity::{Fatal, Permanent, Transient, Undecided};
    match code {
        // Unique, foreign key (23001 is ON DELETE RESTRICT from 18 on), exclusion.
        "23505" | "23503" | "23001" | "23P01" => Undecided,
        // A constraint that looks at this row alone; a check option; a value that does not fit its type.
        "23502" | "23514" | "23000" | "44000" => Permanent,
        // A time-out or a cancel of this statement, transaction or session; a lock not had in time; a slot in use.
        "57014" | "55P03" | "55006" | "25P03" | "25P04" | "57P05" => Transient,
        // The server was, or became, a standby: a failover is under way.
        "25006" => Transient,
        // A cached plan or a prepared statement that DDL or a pooler took away.
        "0A000" | "26000" => Transient,
        // The database was dropped; data or an index page is damaged.
        "57P04" | "XX001" | "XX002" => Fatal,
        _ => class(code),
    }
}

fn class(code: &str) -> Severity {
    use Severity::{Fatal, Permanent, Transient};
    match code.get(..2).unwrap_or_default() {
        // Connection, resources (disk, memory, connections), operator, deadlock and serialization, the system.
        "08" | "53" | "57" | "40" | "58" => Transient,
        // A value; a row that exceeds a limit; a trigger or a function of the target that refuses.
        "22" | "54" | "27" | "38" | "39" | "P0" => Permanent,
        // Statements and states that are ours to get right, rights, names and logins that a person must put right.
        "03" | "0B" | "0L" | "0P" | "20" | "21" | "24" | "25" | "28" | "2B" | "2D" | "2F" | "34" | "3B" | "3D"
        | "3F" | "42" | "55" | "F0" => Fatal,
        _ => Transient,
    }
}
