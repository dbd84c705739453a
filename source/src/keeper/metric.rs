//! What of a look goes out as metrics, and what each of them means.

use metrics::{Unit, describe_gauge, gauge};

use super::judge::{Known, Level, Look};

const STATES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// Tells what each metric means.
pub fn describe() {
    let bytes = |name, text| describe_gauge!(name, Unit::Bytes, text);
    bytes("tributary_slot_retained_bytes", "WAL that the source server keeps for the slot");
    bytes("tributary_slot_behind_bytes", "WAL that is not confirmed: written, and not yet committed to Kafka");
    bytes(
        "tributary_slot_safe_wal_bytes",
        "WAL that may still be written before the slot is in danger; absent without max_slot_wal_keep_size",
    );
    describe_gauge!(
        "tributary_slot_behind_seconds",
        Unit::Seconds,
        "how long ago, at most, the WAL ended where the slot is confirmed; absent while that is not known"
    );
    describe_gauge!("tributary_slot_status", "1 for the wal_status that the slot has, 0 for the others");
    describe_gauge!("tributary_slot_lost", "1 when the slot can never be read again, or is gone, or another's");
    describe_gauge!("tributary_slot_active", "1 when somebody reads from the slot");
    describe_gauge!("tributary_slot_alarm_level", "0 ok, 1 warning, 2 critical, by the thresholds in source.alarms");
    describe_gauge!(
        "tributary_slot_looked_at_seconds",
        Unit::Seconds,
        "when the slot was last looked at, in seconds since 1970 by the server's clock"
    );
}

/// Publishes a look.
pub fn tell(look: &Look, known: &Known, level: Level) {
    let set = |name: &'static str, value: Option<u64>| {
        if let Some(value) = value {
            gauge!(name).set(value as f64);
        }
    };
    set("tributary_slot_retained_bytes", look.retained_bytes());
    set("tributary_slot_behind_bytes", look.behind_bytes());
    set("tributary_slot_behind_seconds", known.age_seconds);
    let slot = look.slot.as_ref();
    if let Some(left) = slot.and_then(|slot| slot.safe_wal_bytes) {
        // Negative once it is in danger.
        gauge!("tributary_slot_safe_wal_bytes").set(left as f64);
    }
    let status = slot.and_then(|slot| slot.wal_status.as_deref());
    for state in STATES {
        gauge!("tributary_slot_status", "status" => state).set(f64::from(u8::from(status == Some(state))));
    }
    let can_be_read = slot.is_some_and(|slot| slot.lost().is_none() && slot.not_ours(&look.database).is_none());
    set("tributary_slot_lost", Some(u64::from(known.is_expected && !can_be_read)));
    set("tributary_slot_active", Some(u64::from(slot.is_some_and(|slot| slot.active_pid.is_some()))));
    set("tributary_slot_alarm_level", Some(level as u64));
    gauge!("tributary_slot_looked_at_seconds").set(look.at_ms as f64 / 1000.0);
}
