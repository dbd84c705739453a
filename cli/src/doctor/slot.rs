//! The replication slot: whose it is, whether it can be read, how far behind it is, how long it lasts when nobody reads it.

use postgres::{Error, quote};

use super::Checks;
use crate::output::bytes;
use crate::slot::{Slot, ask};

pub(super) async fn check(
    checks: &mut Checks,
    config: &source::Config,
    state: Option<&source::State>,
) -> Result<(), Error> {
    let asked = ask(config, "doctor").await?;
    match asked.slot(state, &config.alarms) {
        Some(slot) => judge(checks, &slot, state.is_some()),
        None => missing(checks, config, asked.missing(state, &config.alarms)),
    }
    Ok(())
}

fn missing(checks: &mut Checks, config: &source::Config, losses: Vec<String>) {
    let what = format!("slot {}", config.slot);
    if !losses.is_empty() {
        // What is missing says itself what to do.
        checks.fault(what, "not there", losses.join("; "));
    } else if config.create {
        checks.good(what, "not there yet: the source will make it");
    } else {
        let name = quote::literal(&config.slot);
        let sql = format!("SELECT pg_create_logical_replication_slot({name}, 'pgoutput'), or set source.create = true");
        checks.fault(what, "missing", sql);
    }
}

fn judge(checks: &mut Checks, slot: &Slot, has_published: bool) {
    let what = format!("slot {}", slot.name);
    let reader = slot.active_pid.map_or_else(|| "read by nobody".to_owned(), |pid| format!("read by process {pid}"));
    let status = slot.wal_status.as_deref().unwrap_or_default();
    let kept = slot.retained_bytes.map_or_else(String::new, |kept| format!(", {} kept for it", bytes(kept)));
    let found = format!("{status}, {} behind{kept}, {reader}", bytes(slot.behind_bytes));
    match slot.reasons.as_slice() {
        [] => checks.good(&what, found),
        reasons if slot.is_sound => checks.warn(&what, found, reasons.join("; ")),
        reasons => checks.fault(&what, found, reasons.join("; ")),
    }
    // A slot from which nothing was published is made again by the first start.
    if let (true, true, Some(outlook)) = (has_published, slot.is_sound, &slot.outlook) {
        checks.warn(format!("{what}, read by nobody"), outlook, "start `tributary source`, or `tributary slot drop`");
    }
}
