//! Clients of the database: transactions that insert, update, move, delete, truncate and alter.

use schemas::TableName;

use super::server::{Op, Row, Server};
use super::wire::TABLES;
use super::world::Outside;
use crate::command::{Command, Wish};

/// Keys are 1 to this.
pub(super) const KEYS: u8 = 4;

/// A row whose values are like no other's.
pub(super) fn row(stamp: &str) -> Row {
    Row { name: format!("n{stamp}"), bio: format!("b{stamp}") }
}

/// Something that a client, or the server on its behalf, does.
pub(super) fn step(outside: &mut Outside) {
    let former = outside.strikes(200).then(|| outside.dice.pick(&outside.former).copied()).flatten();
    let at = former.unwrap_or(outside.primary);
    let server = &outside.servers[at];
    let (open, hidden) = (server.open.len(), server.invisible.len());
    let may_begin = open + hidden < 4 && server.wal.len() < outside.weather.transactions;
    if (may_begin && outside.dice.chance(300)) || open + hidden == 0 {
        if may_begin {
            let uid = outside.next_uid();
            outside.servers[at].begin(uid);
        }
        return;
    }
    let which = outside.dice.below(open + hidden);
    if which >= open {
        if outside.dice.below(1000) >= outside.weather.invisible_per_mille {
            show(outside, at, which - open);
        }
    } else if outside.dice.chance(outside.weather.commits_per_mille) {
        finish(outside, at, which);
    } else {
        change(outside, at, which);
    }
}

/// Brings what is open to its end. `false`: there is nothing.
pub(super) fn settle(outside: &mut Outside) -> bool {
    let at = outside.primary;
    if !outside.servers[at].open.is_empty() {
        finish(outside, at, 0);
    } else if !outside.servers[at].invisible.is_empty() {
        show(outside, at, 0);
    } else {
        return false;
    }
    true
}

fn show(outside: &mut Outside, at: usize, which: usize) {
    let uid = outside.servers[at].invisible.iter().copied().nth(which);
    if let Some(uid) = uid {
        outside.servers[at].invisible.remove(&uid);
        outside.tell(|| format!("server {at}: transaction {uid} is visible"));
    }
}

fn finish(outside: &mut Outside, at: usize, which: usize) {
    if outside.servers[at].open[which].changes.is_empty() {
        outside.servers[at].open.remove(which);
        return;
    }
    let time = outside.now();
    let (uid, xid) = (outside.servers[at].open[which].uid, outside.servers[at].open[which].xid);
    outside.servers[at].commit(which, time);
    let (commit, what) = outside.servers[at]
        .wal
        .last()
        .map(|last| {
            (
                last.commit,
                format!(
                    "{:?}",
                    last.changes
                        .iter()
                        .map(|change| (change.lsn, change.table, change.key, &change.op))
                        .collect::<Vec<_>>()
                ),
            )
        })
        .unwrap_or_default();
    outside.tell(|| format!("server {at}: transaction {uid} (xid {xid}) commits at {commit}: {what}"));
}

fn change(outside: &mut Outside, at: usize, open: usize) {
    let Outside { servers, dice, weather, .. } = outside;
    let server = &mut servers[at];
    let uid = server.open[open].uid;
    let table = dice.below(4) / 3;
    if dice.chance(weather.alters_per_mille) {
        if server.is_free(uid, table, None) {
            server.open[open].whole.insert(table);
            server.change(open, table, 0, Op::Alter, false);
        }
        return;
    }
    if dice.chance(weather.truncates_per_mille) {
        let tables: Vec<usize> = if dice.chance(300) { (0..TABLES.len()).collect() } else { vec![table] };
        if tables.iter().all(|table| server.is_free(uid, *table, None)) {
            server.open[open].whole.extend(&tables);
            server.change(open, tables[0], 0, Op::Truncate(tables), false);
        }
        return;
    }
    if dice.chance(weather.beats_per_mille) {
        return server.change(open, 0, 0, Op::Message("beat".into()), false);
    }
    if weather.asks_per_mille > 0 && dice.chance(weather.asks_per_mille) {
        let first = 1 + dice.below(usize::from(KEYS)) as u8;
        let keys = (1..=KEYS).filter(|key| *key == first || dice.below(2) == 0);
        let wish = Wish::Keys {
            table: TableName::new("public", TABLES[table].1),
            keys: keys.map(|key| format!("{{\"id\":{key}}}")).collect(),
        };
        let command = Command { id: format!("k{uid}n{}", server.lsn), wish };
        return server.change(open, 0, 0, Op::Message(command.message()), false);
    }
    let key = 1 + dice.below(usize::from(KEYS)) as u8;
    if server.is_free(uid, table, Some(key)) {
        server.open[open].keys.insert((table, key));
        row_change(outside, at, open, table, key);
    }
}

fn row_change(outside: &mut Outside, at: usize, open: usize, table: usize, key: u8) {
    let stamp = outside.servers[at].lsn;
    let moves = outside.weather.moves;
    let Outside { servers, dice, .. } = outside;
    let server = &mut servers[at];
    let uid = server.open[open].uid;
    let new = row(&format!("{uid}.{stamp}"));
    let Some(old) = server.rows[table].get(&key).cloned() else {
        let shared = shares_record(server, open, table) && dice.chance(300);
        return server.change(open, table, key, Op::Insert(new), shared);
    };
    let other = 1 + dice.below(usize::from(KEYS)) as u8;
    let arrives = !server.rows[table].contains_key(&other) && server.is_free(uid, table, Some(other));
    let partial = dice.below(10) < 6;
    let row = if partial { Row { bio: old.bio, ..new } } else { new };
    match dice.below(10) {
        0 | 1 => server.change(open, table, key, Op::Delete, false),
        chosen if arrives && (2..2 + moves).contains(&chosen) => {
            server.open[open].keys.insert((table, other));
            server.change(open, table, other, Op::Move { from: key, row, partial }, false);
        }
        _ => server.change(open, table, key, Op::Update { row, partial }, false),
    }
}

/// Rows of one COPY may stand in one record, if nothing else was written in between.
fn shares_record(server: &Server, open: usize, table: usize) -> bool {
    let last = server.open[open].changes.last();
    last.is_some_and(|last| last.table == table && matches!(last.op, Op::Insert(_)) && last.lsn + 8 == server.lsn)
}
