//! What a replication connection is asked before it streams, as text and back. Pure.

use schemas::Lsn;

use super::session::Rows;
use crate::quote::identifier;

/// What `IDENTIFY_SYSTEM` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// The cluster's own number, kept as text: it does not fit a double.
    pub system_id: String,
    /// The timeline that it writes.
    pub timeline: u32,
    /// How far its WAL is flushed.
    pub xlogpos: Lsn,
    /// The database that we are connected to.
    pub database: String,
}

impl System {
    pub(super) fn read(rows: &Rows) -> Option<System> {
        Some(System {
            system_id: rows.first("systemid")?.to_owned(),
            timeline: rows.first("timeline")?.parse().ok()?,
            xlogpos: rows.first("xlogpos")?.parse().ok()?,
            database: rows.first("dbname")?.to_owned(),
        })
    }
}

/// A slot that was just made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// It streams exactly the transactions whose commit is at or above.
    pub consistent_point: Lsn,
    /// The exported snapshot that holds all the others. It is gone with this connection's next command.
    pub snapshot: String,
}

impl Slot {
    pub(super) fn read(rows: &Rows) -> Option<Slot> {
        Some(Slot {
            name: rows.first("slot_name")?.to_owned(),
            consistent_point: rows.first("consistent_point")?.parse().ok()?,
            snapshot: rows.first("snapshot_name")?.to_owned(),
        })
    }
}

/// How long a slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is dropped.
    Permanent,
    /// The same, and standbys that synchronise slots take it along. From 17 on.
    Failover,
    /// Until its connection ends.
    Temporary,
}

/// One end of a timeline in the server's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The timeline that ended.
    pub timeline: u32,
    /// Where it ended.
    pub at: Lsn,
}

/// The switches in a history file: `1<tab>0/3000060<tab>reason`, and comments.
pub(super) fn switches(history: &str) -> Vec<Switch> {
    let switch = |line: &str| {
        let mut words = line.split_whitespace();
        Some(Switch { timeline: words.next()?.parse().ok()?, at: words.next()?.parse().ok()? })
    };
    history.lines().filter_map(switch).collect()
}

/// The form that 14 to 18 understand, but for what only 17 and later can.
pub(super) fn create_slot(name: &str, lifetime: Lifetime) -> String {
    let options = match lifetime {
        Lifetime::Permanent => "LOGICAL pgoutput EXPORT_SNAPSHOT",
        Lifetime::Failover => "LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)",
        Lifetime::Temporary => "TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT",
    };
    format!("CREATE_REPLICATION_SLOT {} {options}", identifier(name))
}

pub(super) fn make_failover(name: &str) -> String {
    format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", identifier(name))
}

pub(super) fn start(slot: &str, publications: &[&str], from: Lsn) -> String {
    // The list's items are identifiers, and the list is a literal of the walsender's own grammar, where a backslash
    // is a backslash.
    let publications = publications.iter().map(|name| identifier(name)).collect::<Vec<_>>().join(",");
    let publications = publications.replace('\'', "''");
    format!(
        "START_REPLICATION SLOT {} LOGICAL {from} \
         (proto_version '1', publication_names '{publications}', messages 'true')",
        identifier(slot)
    )
}

/// The process that a server's message "replication slot … is active for PID 123" names, in whatever language.
pub(super) fn active_pid(message: &str, slot: &str) -> Option<i32> {
    let message = message.replace(slot, "");
    let mut numbers = message.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_a_command() {
        assert_eq!(
            start("tributary_shop", &["a", r#"o'b"c\"#], Lsn(0)),
            r#"START_REPLICATION SLOT "tributary_shop" LOGICAL 0/0 (proto_version '1', publication_names '"a","o''b""c\"', messages 'true')"#
        );
        assert_eq!(
            create_slot("x\"y", Lifetime::Temporary),
            r#"CREATE_REPLICATION_SLOT "x""y" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"#
        );
        assert_eq!(make_failover("x\"y"), r#"ALTER_REPLICATION_SLOT "x""y" (FAILOVER true)"#);
    }

    #[test]
    fn the_reader_of_a_slot_is_found_in_any_language() {
        let english = r#"replication slot "shop_1" is active for PID 4711"#;
        let german = "Replikations-Slot »shop_1« ist aktiv für PID 4711";
        let nameless = r#"replication slot "shop_1" is active"#;
        assert_eq!(active_pid(english, "shop_1"), Some(4711));
        assert_eq!(active_pid(german, "shop_1"), Some(4711));
        assert_eq!(active_pid(nameless, "shop_1"), None);
    }

    #[test]
    fn a_history_is_its_switches() {
        let history = "# written by hand\n1\t0/3000060\tno recovery target specified\n\n2\t16/B374D848\tbefore 2024\n";
        let expected = [Switch { timeline: 1, at: Lsn(0x300_0060) }, Switch { timeline: 2, at: Lsn(0x16_B374_D848) }];
        assert_eq!(switches(history), expected);
    }
}
