//! What breaks: processes die and sleep, connections are cut, servers crash, fail over and are restored, slots are moved.

use postgres::replication::Switch;

use super::process::Process;
use super::server::{Server, Slot};
use super::world::{Broken, Outside};

/// A standby: how far it has replayed, and where its copy of the slot stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standby {
    lsn: u64,
    confirmed: u64,
}

/// A copy of a server's disk: which one, how many transactions, next LSN and xid, and the slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backup {
    server: usize,
    transactions: usize,
    lsn: u64,
    xid: u32,
    slot: Slot,
}

/// No more of these in one run.
const DISASTERS: u32 = 3;

/// One fault, by the weather's likelihoods.
pub(super) fn strike(outside: &mut Outside, processes: &mut [Process]) {
    let weather = outside.weather;
    let kinds = [
        weather.kills,
        weather.naps,
        weather.cuts,
        10, // a checkpoint
        weather.crashes,
        2 * (weather.failovers + weather.thefts.min(1)),
        weather.failovers,
        weather.restores,
        weather.restores,
        weather.thefts,
        weather.lists,
    ];
    let mut draw = outside.dice.below(kinds.iter().sum());
    let mut kind = 0;
    while draw >= kinds[kind] {
        draw -= kinds[kind];
        kind += 1;
    }
    let which = outside.dice.below(processes.len());
    match kind {
        0 => {
            outside.tell(|| format!("process {which}: killed"));
            processes[which].reset(outside);
        }
        1 => nap(outside, &mut processes[which]),
        2 => {
            outside.tell(|| "the connection is cut".to_owned());
            outside.servers[outside.primary].sender = None;
        }
        3 => checkpoint(outside),
        4 => crash(outside),
        5 => follow(outside),
        6 => failover(outside),
        7 => backup(outside),
        8 => restore(outside),
        9 => steal(outside),
        _ => {
            outside.wanted = !outside.wanted;
            let wanted = outside.wanted;
            outside
                .tell(|| format!("from the next start on orders are {}", if wanted { "listed" } else { "not listed" }));
        }
    }
}

/// A request lands that its sender has given up, unless he was fenced.
pub(super) fn land_late(outside: &mut Outside) -> Result<(), Broken> {
    if let Some(commit) = outside.broker.flying.pop() {
        let landed = outside.broker.land(commit, outside.out)?;
        outside.tell(|| format!("a late request arrives: {}", if landed { "committed" } else { "fenced" }));
    }
    Ok(())
}

/// The last of the faults: what was on its way is lost, former primaries are switched off, both processes begin anew.
pub(super) fn calm(outside: &mut Outside, processes: &mut [Process]) {
    outside.broker.flying.clear();
    for former in std::mem::take(&mut outside.former) {
        outside.servers[former].sender = None;
    }
    processes.iter_mut().for_each(|process| process.reset(outside));
}

fn primary(outside: &mut Outside) -> &mut Server {
    &mut outside.servers[outside.primary]
}

/// A process sleeps (SIGSTOP, a virtual machine that moves); the server may take it for dead meanwhile.
fn nap(outside: &mut Outside, process: &mut Process) {
    process.asleep = 4 + outside.dice.below(40);
    let given_up = outside.dice.chance(700);
    if given_up {
        process.hang_up(outside);
    }
    let which = process.name;
    outside.tell(|| format!("process {which}: asleep{}", if given_up { ", and the server gives it up" } else { "" }));
}

fn checkpoint(outside: &mut Outside) {
    if let Some(slot) = &mut primary(outside).slot {
        slot.saved = slot.confirmed;
    }
}

fn disaster(outside: &mut Outside) -> bool {
    outside.disasters += 1;
    outside.disasters <= DISASTERS
}

fn crash(outside: &mut Outside) {
    if disaster(outside) {
        outside.tell(|| "the server crashes".to_owned());
        let server = primary(outside);
        server.recover();
        if let Some(slot) = &mut server.slot {
            slot.confirmed = slot.saved;
        }
    }
}

/// The standby replays what there is, or copies the slot, which it may not have ahead of itself.
fn follow(outside: &mut Outside) {
    let copies = outside.dice.chance(500);
    let server = &outside.servers[outside.primary];
    let Some(slot) = server.slot.filter(|_| outside.broker.start > 0) else { return };
    let standby = outside.standby.get_or_insert(Standby { lsn: server.lsn, confirmed: slot.confirmed });
    if !copies {
        standby.lsn = standby.lsn.max(server.lsn);
    } else if slot.confirmed <= standby.lsn {
        standby.confirmed = standby.confirmed.max(slot.confirmed);
    }
}

fn failover(outside: &mut Outside) {
    let Some(standby) = outside.standby.filter(|standby| standby.confirmed >= outside.broker.start) else { return };
    if !disaster(outside) {
        return;
    }
    outside.standby = None;
    let old = &outside.servers[outside.primary];
    let wal: Vec<_> = old.wal.iter().filter(|transaction| transaction.end <= standby.lsn).cloned().collect();
    let mut new = Server::new(old.base.clone(), wal, standby.lsn);
    new.xid = new.wal.iter().map(|transaction| transaction.xid + 1).max().unwrap_or(new.xid);
    new.timeline = outside.servers.iter().map(|server| server.timeline).max().unwrap_or(1) + 1;
    new.switches = old.switches.clone();
    new.switches.push(Switch { timeline: old.timeline, at: schemas::Lsn(standby.lsn) });
    new.slot = Some(Slot { confirmed: standby.confirmed, saved: standby.confirmed });
    new.publication = old.publication.iter().copied().filter(|(at, _)| *at < standby.lsn).collect();
    let former = outside.primary;
    outside.servers.push(new);
    outside.primary = outside.servers.len() - 1;
    if outside.dice.chance(500) {
        outside.former.push(former);
    } else {
        outside.servers[former].sender = None;
    }
    let alive = outside.former.contains(&former);
    outside.tell(|| {
        let state = if alive { "still answers" } else { "is gone" };
        format!("failover at {}, slot at {}; server {former} {state}", standby.lsn, standby.confirmed)
    });
}

fn backup(outside: &mut Outside) {
    let at = outside.primary;
    let server = &outside.servers[at];
    if let Some(slot) = server.slot.filter(|slot| outside.broker.start > 0 && slot.confirmed >= outside.broker.start) {
        outside.backup =
            Some(Backup { server: at, transactions: server.wal.len(), lsn: server.lsn, xid: server.xid, slot });
    }
}

fn restore(outside: &mut Outside) {
    let Some(backup) = outside.backup.filter(|backup| backup.server == outside.primary) else { return };
    if disaster(outside) {
        outside.tell(|| format!("the disk is restored as it was at {}", backup.lsn));
        let server = primary(outside);
        server.wal.truncate(backup.transactions);
        (server.lsn, server.xid) = (backup.lsn, backup.xid);
        server.publication.retain(|(at, _)| *at < backup.lsn);
        server.restored = Some(server.restored.map_or(backup.lsn, |lowest| lowest.min(backup.lsn)));
        server.slot = Some(Slot { saved: backup.slot.confirmed, ..backup.slot });
        server.recover();
        outside.standby = None;
        outside.broker.takes_back = true;
    }
}

fn steal(outside: &mut Outside) {
    let server = &mut outside.servers[outside.primary];
    let (end, idle) = (server.lsn, server.sender.is_none() && server.invisible.is_empty());
    // On a restored disk nobody could tell a slot that was moved below what an older history was flushed to.
    let idle = idle && server.restored.is_none();
    if let Some(slot) = server.slot.as_mut().filter(|_| idle && outside.broker.start > 0) {
        slot.confirmed = end;
        outside.stolen = true;
        outside.tell(|| format!("somebody moves the slot to {end}"));
    }
}
