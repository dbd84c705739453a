//! What a look at the slot means: whose it is, whether it can still be read, how far it is behind, and what to do about it.
//!
//!     Look (the server's answer) ─┬─▶ not_ours, lost ────────▶ nothing can be read any more
//!     Ages (WAL ends over time) ──┴─▶ judge ─▶ Level, reasons ─▶ the log, the metrics, status, doctor
//!     Rate (WAL a second) ──────────▶ outlook ─▶ how long a slot that nobody reads will last
//!
//! Pure: no clock, no server. Times are the server's own, so that its clock and ours need not agree.

use std::collections::VecDeque;
use std::time::Duration;

use schemas::Lsn;

/// How many pairs of WAL end and time are remembered.
const AGES_MAX: usize = 512;
/// An alarm is over when it was lower for so long.
const CALM_MS: i64 = 60_000;

/// What the server says of the slot at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The slot's name.
    pub name: String,
    /// The server's clock, in milliseconds since 1970.
    pub at_ms: i64,
    /// The database that was asked.
    pub database: String,
    /// The end of the WAL.
    pub server_lsn: Lsn,
    /// `max_slot_wal_keep_size` in bytes; none: without limit.
    pub keep_bytes: Option<u64>,
    /// `idle_replication_slot_timeout` of 18 and later; none: off.
    pub idle_timeout: Option<Duration>,
    /// The slot; none: there is none of this name.
    pub slot: Option<Slot>,
}

/// A replication slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Whether it is a physical one.
    pub is_physical: bool,
    /// Its output plugin.
    pub plugin: Option<String>,
    /// Its database.
    pub database: Option<String>,
    /// Whether it goes with the connection that made it.
    pub is_temporary: bool,
    /// The server process that reads from it.
    pub active_pid: Option<i32>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// What may still be written before it is in danger; none: without limit, or lost.
    pub safe_wal_bytes: Option<i64>,
    /// From where the server keeps WAL for it.
    pub restart_lsn: Option<Lsn>,
    /// Up to where we have confirmed.
    pub confirmed_lsn: Option<Lsn>,
    /// 17 and later: why it cannot be read any more.
    pub invalidation_reason: Option<String>,
    /// 16 and later, on a standby: whether recovery has made it useless.
    pub is_conflicting: bool,
    /// 17 and later: since when nobody reads from it.
    pub inactive_since_ms: Option<i64>,
    /// 17 and later: whether standbys take it along.
    pub is_failover: bool,
    /// 17 and later: whether it came from another server that way.
    pub is_synced: bool,
}

/// How urgent it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    #[default]
    Ok,
    /// Somebody should look.
    Warning,
    /// Somebody must act.
    Critical,
}

impl Level {
    /// For people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Critical => "critical",
        }
    }
}

/// When it is time to say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarms {
    /// Bytes of WAL that the server keeps for us: warning, critical.
    pub retained_bytes: [u64; 2],
    /// Seconds that the confirmed place is old: warning, critical.
    pub behind_seconds: [u64; 2],
    /// What is left of `max_slot_wal_keep_size`, in percent: warning, critical.
    pub room_percent: [u64; 2],
}

/// One thing to say about a slot, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// How urgent.
    pub level: Level,
    /// What is so.
    pub found: String,
    /// What to do.
    pub remedy: String,
}

/// What a look comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The highest of all reasons.
    pub level: Level,
    /// Most urgent first.
    pub reasons: Vec<Reason>,
}

/// What is known beside the look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// How many seconds ago the WAL ended where the slot is confirmed; an upper bound. None: not known.
    pub age_seconds: Option<u64>,
    /// Something was published from the slot, so it must be there.
    pub is_expected: bool,
}

impl Look {
    /// WAL that the server keeps for the slot.
    pub fn retained_bytes(&self) -> Option<u64> {
        self.since(self.slot.as_ref()?.restart_lsn)
    }

    /// WAL that is not confirmed.
    pub fn behind_bytes(&self) -> Option<u64> {
        self.since(self.slot.as_ref()?.confirmed_lsn)
    }

    /// Why nothing can be read from the slot; none: it can, or there is none.
    pub fn unusable(&self) -> Option<Unusable> {
        let slot = self.slot.as_ref()?;
        slot.not_ours(&self.database).map(Unusable::Foreign).or_else(|| slot.lost().map(Unusable::Lost))
    }

    fn since(&self, lsn: Option<Lsn>) -> Option<u64> {
        lsn.map(|lsn| self.server_lsn.0.saturating_sub(lsn.0))
    }

    /// What is left of `max_slot_wal_keep_size`, in percent.
    pub fn room_percent(&self) -> Option<u64> {
        let (left, of) = (self.slot.as_ref()?.safe_wal_bytes?, self.keep_bytes.filter(|bytes| *bytes > 0)?);
        let left = u64::try_from(left).unwrap_or(0);
        Some(u64::try_from(u128::from(left) * 100 / u128::from(of)).unwrap_or(u64::MAX).min(100))
    }

    /// When a slot that nobody reads is invalidated by `idle_replication_slot_timeout`: from now, and in percent of it.
    pub fn idle_left(&self) -> Option<(Duration, u64)> {
        let slot = self.slot.as_ref().filter(|slot| slot.active_pid.is_none())?;
        let limit = self.idle_timeout.filter(|limit| !limit.is_zero())?;
        let idle = self.at_ms.saturating_sub(slot.inactive_since_ms?).max(0);
        let left = limit.saturating_sub(Duration::from_millis(idle.unsigned_abs()));
        Some((left, (left.as_secs_f64() / limit.as_secs_f64() * 100.0) as u64))
    }
}

impl Slot {
    /// Why this slot cannot be ours; none: it can.
    pub fn not_ours(&self, database: &str) -> Option<String> {
        let here = self.database.as_deref().unwrap_or_default();
        let plugin = self.plugin.as_deref().unwrap_or_default();
        if self.is_physical {
            Some("it is a physical one, as standbys use".to_owned())
        } else if self.is_temporary {
            let by = self.active_pid.map_or_else(String::new, |pid| format!(" of server process {pid}"));
            Some(format!("it is a temporary one{by} and goes with its connection"))
        } else if here != database {
            Some(format!("it belongs to the database {here}"))
        } else if plugin != "pgoutput" {
            Some(format!("it decodes with the plugin {plugin}"))
        } else {
            None
        }
    }

    /// Why it can never be read again; none: it can be read.
    pub fn lost(&self) -> Option<Lost> {
        let lost = |why, cure| Some(Lost { why, cure });
        match self.invalidation_reason.as_deref() {
            Some("wal_removed") => Some(WAL_REMOVED),
            Some("idle_timeout") => {
                lost("nobody read from it for idle_replication_slot_timeout", "raise idle_replication_slot_timeout")
            }
            Some("rows_removed") => lost(
                "the standby has removed rows of the catalog that it needed",
                "set hot_standby_feedback = on, and a physical slot in primary_slot_name",
            ),
            Some("wal_level_insufficient") => {
                lost("wal_level was lowered", "ALTER SYSTEM SET wal_level = logical on the primary")
            }
            Some(_) => lost("the server has invalidated it", "see invalidation_reason in pg_replication_slots"),
            None if self.is_conflicting => lost(
                "it conflicts with recovery on the standby",
                "set hot_standby_feedback = on, and wal_level = logical on the primary",
            ),
            None if self.wal_status.as_deref() == Some("lost") => Some(WAL_REMOVED),
            None => None,
        }
    }
}

/// Why a slot can never be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// What has happened.
    pub why: &'static str,
    /// What keeps the next one from it.
    cure: &'static str,
}

impl Lost {
    /// What to do.
    pub fn remedy(&self) -> String {
        format!(
            "what was written since is missing in the topics for ever: {}, remove the slot (`tributary slot drop --yes`) and load again under a new prefix",
            self.cure
        )
    }
}

const WAL_REMOVED: Lost =
    Lost { why: "the server has removed WAL that it needed", cure: "raise max_slot_wal_keep_size, or set it to -1" };

/// Why nothing can be read from the slot of our name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is another's, by what.
    Foreign(String),
    /// It is ours, and lost.
    Lost(Lost),
}

/// What to do about a slot that is gone though something was published from it.
const REMEDY_OF_GONE: &str = "what was written since is missing in the topics for ever: load again under a new prefix";

/// Judges a look.
pub fn judge(look: &Look, known: &Known, alarms: &Alarms) -> Verdict {
    let mut reasons = Vec::new();
    let mut say = |level, found: String, remedy: String| reasons.push(Reason { level, found, remedy });
    let name = &look.name;
    match &look.slot {
        None if known.is_expected => {
            say(Level::Critical, format!("the slot {name} is gone"), REMEDY_OF_GONE.to_owned());
        }
        None => {}
        Some(slot) => {
            if let Some(why) = slot.not_ours(&look.database) {
                let remedy = "name another slot in source.slot, or have its owner drop it".to_owned();
                say(Level::Critical, format!("the slot {name} is not ours: {why}"), remedy);
            } else if let Some(lost) = slot.lost() {
                say(Level::Critical, format!("the slot {name} is lost: {}", lost.why), lost.remedy());
            } else {
                alarm(look, slot, known, alarms, &mut say);
            }
        }
    }
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.level));
    Verdict { level: reasons.first().map_or(Level::Ok, |reason| reason.level), reasons }
}

/// What may become of a slot that is ours and can be read.
fn alarm(look: &Look, slot: &Slot, known: &Known, alarms: &Alarms, say: &mut impl FnMut(Level, String, String)) {
    let name = &look.name;
    let catch_up = "see that `tributary source` runs and what keeps it: its log, Kafka, long transactions";
    if slot.wal_status.as_deref() == Some("unreserved") {
        say(
            Level::Critical,
            format!("the slot {name} is beyond max_slot_wal_keep_size: the next checkpoint may take its WAL away"),
            "raise max_slot_wal_keep_size now (a reload is enough) and let the source catch up".to_owned(),
        );
    } else if let Some(percent) = look.room_percent() {
        let [warning, critical] = alarms.room_percent;
        let level = if percent <= critical { Level::Critical } else { Level::Warning };
        if percent <= warning {
            let remedy = format!("raise max_slot_wal_keep_size (a reload is enough), and {catch_up}");
            say(level, format!("the slot {name} has {percent} % of max_slot_wal_keep_size left"), remedy);
        }
    }
    let level = |value: u64, [warning, critical]: [u64; 2]| match value {
        value if value >= critical => Level::Critical,
        value if value >= warning => Level::Warning,
        _ => Level::Ok,
    };
    let retained = look.retained_bytes().unwrap_or(0);
    if let level @ (Level::Warning | Level::Critical) = level(retained, alarms.retained_bytes) {
        let found = format!("the server keeps {} MiB of WAL for the slot {name}", retained >> 20);
        say(level, found, format!("{catch_up}; watch the disk of the server"));
    }
    let age = known.age_seconds.unwrap_or(0);
    if let level @ (Level::Warning | Level::Critical) = level(age, alarms.behind_seconds) {
        say(level, format!("the slot {name} is {age} s behind"), catch_up.to_owned());
    }
    if let Some((left, percent)) = look.idle_left() {
        let [warning, critical] = alarms.room_percent;
        let level = if percent <= critical { Level::Critical } else { Level::Warning };
        if percent <= warning {
            let found = format!(
                "nobody reads from the slot {name}, and idle_replication_slot_timeout makes it useless in {} s",
                left.as_secs()
            );
            say(level, found, "start `tributary source`, or raise idle_replication_slot_timeout".to_owned());
        }
    }
}

/// Which level was told, so that each change is told once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alarm {
    told: Level,
    /// Since when it is lower than told.
    lower_since_ms: Option<i64>,
}

impl Alarm {
    /// The level is `level` at `at_ms`. Returns it if it is to be told: a higher one at once, a lower one when it has
    /// lasted, or a slot at the edge of a threshold would fill the log.
    pub fn hear(&mut self, level: Level, at_ms: i64) -> Option<Level> {
        if level == self.told {
            self.lower_since_ms = None;
            return None;
        }
        if level < self.told {
            let since = *self.lower_since_ms.get_or_insert(at_ms);
            if at_ms.saturating_sub(since) < CALM_MS {
                return None;
            }
        }
        *self = Alarm { told: level, lower_since_ms: None };
        Some(level)
    }
}

/// Where the WAL ended at which time, and so how old a place in it is.
#[derive(Clone, Debug, Default)]
pub struct Ages(VecDeque<(Lsn, i64)>);

impl Ages {
    /// Nothing beyond `lsn` was written before `at_ms`.
    pub fn note(&mut self, lsn: Lsn, at_ms: i64) {
        let place = self.0.partition_point(|(known, _)| *known < lsn);
        match self.0.get_mut(place) {
            Some((known, at)) if *known == lsn => *at = (*at).max(at_ms),
            _ => self.0.insert(place, (lsn, at_ms)),
        }
        if self.0.len() > AGES_MAX {
            // Of what is long past every second pair will do: an age is an upper bound all the same.
            let mut keep = (0..self.0.len()).map(|i| i >= AGES_MAX / 2 || i % 2 == 0);
            self.0.retain(|_| keep.next().unwrap_or(true));
        }
    }

    /// How many seconds ago the WAL ended at `lsn`, at most; none: before anything that is known.
    pub fn seconds(&self, lsn: Lsn, now_ms: i64) -> Option<u64> {
        let covered = self.0.iter().take_while(|(known, _)| *known <= lsn).map(|(_, at)| *at).max()?;
        Some(now_ms.saturating_sub(covered).max(0).unsigned_abs() / 1000)
    }
}

/// How much WAL the server writes, and what that is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So many bytes …
    pub bytes: u64,
    /// … in this time.
    pub over: Duration,
    /// How it is known.
    pub basis: Basis,
}

/// Between which two moments WAL was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Since the source last noted in Kafka where it stands.
    LastState,
    /// Two looks of this moment.
    TwoLooks,
}

impl Rate {
    /// Bytes a second; none: nothing was written, or no time has passed.
    pub fn per_second(&self) -> Option<f64> {
        let seconds = self.over.as_secs_f64();
        (self.bytes > 0 && seconds > 0.0).then(|| self.bytes as f64 / seconds)
    }

    /// How long `bytes` last at this rate.
    pub fn lasts(&self, bytes: u64) -> Option<Duration> {
        // A rate of a few bytes a day must not overflow the type.
        let seconds = bytes as f64 / self.per_second()?;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// What ends a slot that nobody reads, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// `max_slot_wal_keep_size` is reached, after so long at the measured rate.
    Lost(Option<Duration>),
    /// Nothing but the server's disk, whose size it does not tell. Until the alarm's critical bytes it takes so long.
    Disk(Option<Duration>),
}

/// What becomes of the slot if nobody reads from it. None: somebody does, or nothing can become of it any more.
pub fn outlook(look: &Look, rate: &Rate, alarms: &Alarms) -> Option<Outlook> {
    let slot = look.slot.as_ref().filter(|slot| slot.active_pid.is_none())?;
    if slot.lost().is_some() || slot.not_ours(&look.database).is_some() {
        return None;
    }
    Some(match (look.keep_bytes, slot.safe_wal_bytes) {
        (Some(_), Some(left)) => Outlook::Lost(rate.lasts(u64::try_from(left).unwrap_or(0))),
        _ => {
            let left = alarms.retained_bytes[1].saturating_sub(look.retained_bytes().unwrap_or(0));
            Outlook::Disk(rate.lasts(left))
        }
    })
}

#[cfg(test)]
mod tests;
