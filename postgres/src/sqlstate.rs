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

/// Whether it speaks of what stands around a statement: connection, means, rights, others' locks, a shutdown, damage. Whatever
/// else it is, the statement's own text may have led to it: the input of a type may fail with any other code.
pub fn is_of_circumstances(code: &str) -> bool {
    let classes = ["08", "25", "26", "28", "3D", "40", "53", "55", "57", "58", "F0"];
    code.get(..2).is_none_or(|class| classes.contains(&class)) || is_refusal(code)
}

/// Whether a table cannot be read: our rights on it are gone, or its file or its index is damaged.
pub fn is_refusal(code: &str) -> bool {
    matches!(code, "42501" | "XX001" | "XX002")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: Severity, codes: &[&str]) {
        for code in codes {
            assert_eq!(severity(code), expected, "SQLSTATE {code}");
        }
    }

    #[test]
    fn what_may_pass_is_retried() {
        let connection = ["08000", "08006", "57P01", "57P02", "57P03", "57P05", "53300", "58030"];
        let concurrency = ["40001", "40P01", "55P03", "55006", "57014", "25P03", "25P04"];
        check(Severity::Transient, &connection);
        check(Severity::Transient, &concurrency);
        // Disk full, out of memory, a standby during a failover, a plan that DDL or a pooler took away.
        check(Severity::Transient, &["53100", "53200", "25006", "0A000", "26000"]);
    }

    #[test]
    fn what_this_event_can_never_pass_is_parked() {
        check(Severity::Permanent, &["22001", "22003", "22P02", "22026", "23502", "23514", "44000", "54000", "P0001"]);
    }

    #[test]
    fn what_another_event_may_resolve_is_undecided() {
        check(Severity::Undecided, &["23505", "23503", "23P01", "23001"]);
    }

    #[test]
    fn what_a_person_must_put_right_stops() {
        let ours = ["21000", "42601", "42P01", "42703", "428C9", "25P02", "55000"];
        let theirs = ["28P01", "28000", "3D000", "42501", "57P04", "XX001", "XX002"];
        check(Severity::Fatal, &ours);
        check(Severity::Fatal, &theirs);
    }

    #[test]
    fn what_stands_around_a_statement_is_told_from_what_stands_in_it() {
        let around = ["08006", "57014", "57P01", "53200", "55P03", "40P01", "25006", "42501", "28P01", "XX001", ""];
        // Of values: ltree, a deep array, regtype, regclass, regnamespace, json in a key, and an extension's own.
        let within =
            ["22P02", "42601", "54000", "54001", "42704", "42P01", "3F000", "42883", "XX000", "P0001", "23514"];
        assert_eq!(around.iter().filter(|code| !is_of_circumstances(code)).count(), 0);
        assert_eq!(within.iter().filter(|code| is_of_circumstances(code)).count(), 0);
    }

    #[test]
    fn what_nobody_knows_is_retried_loudly() {
        check(Severity::Transient, &["XX000", "ZZ999", "", "é"]);
    }
}
