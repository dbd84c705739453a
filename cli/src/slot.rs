//! The replication slot as `status`, `doctor` and `slot` show it.
//!
//!     the server ──one look, or two──▶ Asked ─┐
//!     <prefix>.state ─────────────────────────┴─▶ Slot: what is so, how urgent it is, how long it lasts
//!
//! What a look means is for the source's keeper to say; here it is asked for and put into words.

pub(crate) mod drop;
pub(crate) mod show;

use std::time::Duration;

use serde::Serialize;
use source::keeper::{self, Ages, Alarms, Basis, Known, Look, Outlook, Rate};

use crate::output::bytes;

/// Between two looks, when the WAL's growth is measured.
const APART: Duration = Duration::from_secs(1);
/// A state that is older than this tells more of the WAL's growth than two looks.
const LONG: Duration = Duration::from_secs(60);

/// What the server has said.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The last look.
    look: Look,
    /// How much the WAL grew from the look before; only where nobody reads from the slot.
    grown: Option<Rate>,
}

/// Looks at the configured slot; twice if nobody reads from it, to see how fast the WAL grows.
pub(crate) async fn ask(config: &source::Config, purpose: &str) -> Result<Asked, postgres::Error> {
    let client = postgres::connect(&config.postgres, purpose).await?;
    let first = keeper::look(&client, &config.slot).await?;
    if first.slot.as_ref().is_none_or(|slot| slot.active_pid.is_some() || slot.lost().is_some()) {
        return Ok(Asked { look: first, grown: None });
    }
    tokio::time::sleep(APART).await;
    let look = keeper::look(&client, &config.slot).await?;
    let over = Duration::from_millis(look.at_ms.saturating_sub(first.at_ms).max(0).unsigned_abs());
    let bytes = look.server_lsn.0.saturating_sub(first.server_lsn.0);
    Ok(Asked { look, grown: Some(Rate { bytes, over, basis: Basis::TwoLooks }) })
}

/// The replication slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Slot {
    pub(crate) name: String,
    /// The process that reads from it.
    pub(crate) active_pid: Option<i32>,
    /// Since when nobody does, in milliseconds since 1970; 17 and later.
    pub(crate) inactive_since_ms: Option<i64>,
    /// PostgreSQL's word: reserved, extended, unreserved, lost.
    pub(crate) wal_status: Option<String>,
    /// Why it cannot be read any more; 17 and later.
    pub(crate) invalidation_reason: Option<String>,
    pub(crate) confirmed_lsn: Option<String>,
    /// From where the server keeps WAL.
    pub(crate) restart_lsn: Option<String>,
    pub(crate) server_lsn: String,
    /// WAL that is not confirmed.
    pub(crate) behind_bytes: u64,
    /// How long ago, at most, the WAL ended where the slot is confirmed.
    pub(crate) behind_seconds: Option<u64>,
    /// WAL that the server keeps for the slot.
    pub(crate) retained_bytes: Option<u64>,
    /// What may still be written before the slot is in danger; none: without limit.
    pub(crate) safe_wal_bytes: Option<i64>,
    /// `max_slot_wal_keep_size`; none: without limit.
    pub(crate) wal_keep_bytes: Option<u64>,
    /// `idle_replication_slot_timeout`; 18 and later.
    pub(crate) idle_timeout_seconds: Option<u64>,
    /// ok, warning, critical.
    pub(crate) level: &'static str,
    /// What is wrong with it, each with its remedy.
    pub(crate) reasons: Vec<String>,
    /// Whether it is ours and can be read.
    pub(crate) is_sound: bool,
    /// What becomes of it if nobody reads from it.
    pub(crate) outlook: Option<String>,
}

impl Asked {
    /// With what the source has noted of itself, if that could be read.
    pub(crate) fn slot(&self, state: Option<&source::State>, alarms: &Alarms) -> Option<Slot> {
        let (look, slot) = (&self.look, self.look.slot.as_ref()?);
        let known = self.known(state);
        let verdict = keeper::judge(look, &known, alarms);
        let rate = self.rate(state);
        let outlook = rate.and_then(|rate| Some(words(&rate, keeper::outlook(look, &rate, alarms)?, alarms)));
        Some(Slot {
            name: look.name.clone(),
            active_pid: slot.active_pid,
            inactive_since_ms: slot.inactive_since_ms.filter(|_| slot.active_pid.is_none()),
            wal_status: slot.wal_status.clone(),
            invalidation_reason: slot.invalidation_reason.clone(),
            confirmed_lsn: slot.confirmed_lsn.map(|lsn| lsn.to_string()),
            restart_lsn: slot.restart_lsn.map(|lsn| lsn.to_string()),
            server_lsn: look.server_lsn.to_string(),
            behind_bytes: look.behind_bytes().unwrap_or(0),
            behind_seconds: known.age_seconds,
            retained_bytes: look.retained_bytes(),
            safe_wal_bytes: slot.safe_wal_bytes,
            wal_keep_bytes: look.keep_bytes,
            idle_timeout_seconds: look.idle_timeout.map(|limit| limit.as_secs()),
            level: verdict.level.as_str(),
            reasons: reasons(&verdict),
            is_sound: slot.lost().is_none() && slot.not_ours(&look.database).is_none(),
            outlook,
        })
    }

    /// What is wrong where there is no slot of the name at all.
    pub(crate) fn missing(&self, state: Option<&source::State>, alarms: &Alarms) -> Vec<String> {
        if self.look.slot.is_some() {
            return Vec::new();
        }
        reasons(&keeper::judge(&self.look, &self.known(state), alarms))
    }

    fn known(&self, state: Option<&source::State>) -> Known {
        let mut ages = Ages::default();
        if let Some(stream) = state.map(|state| &state.stream) {
            stream.flushed_ms.iter().for_each(|at_ms| ages.note(stream.flushed, *at_ms));
        }
        ages.note(self.look.server_lsn, self.look.at_ms);
        let confirmed = self.look.slot.as_ref().and_then(|slot| slot.confirmed_lsn);
        Known {
            age_seconds: confirmed.and_then(|lsn| ages.seconds(lsn, self.look.at_ms)),
            is_expected: state.is_some(),
        }
    }

    /// How fast the WAL grows: since the source last noted where it stands, if that is long enough ago.
    fn rate(&self, state: Option<&source::State>) -> Option<Rate> {
        let stream = state.map(|state| &state.stream);
        let noted = stream.and_then(|stream| Some((stream.flushed, stream.flushed_ms?)));
        let since = noted.map(|(lsn, at_ms)| {
            let over = Duration::from_millis(self.look.at_ms.saturating_sub(at_ms).max(0).unsigned_abs());
            Rate { bytes: self.look.server_lsn.0.saturating_sub(lsn.0), over, basis: Basis::LastState }
        });
        since.filter(|rate| rate.over >= LONG).or(self.grown)
    }
}

fn reasons(verdict: &keeper::Verdict) -> Vec<String> {
    verdict.reasons.iter().map(|reason| format!("{}: {}", reason.found, reason.remedy)).collect()
}

/// The outlook in words, with what it is based on.
fn words(rate: &Rate, outlook: Outlook, alarms: &Alarms) -> String {
    let basis = match rate.basis {
        Basis::LastState => {
            format!("measured over the {} since the source last noted where it stands", span(rate.over))
        }
        Basis::TwoLooks => format!("measured just now, over {:.1} s alone", rate.over.as_secs_f64()),
    };
    let Some(per_second) = rate.per_second() else {
        return format!("no WAL is written, so it lasts ({basis})");
    };
    let a_second = bytes(per_second as u64);
    match outlook {
        Outlook::Lost(left) => format!(
            "at {a_second} of WAL a second the slot is lost {} ({basis}), since max_slot_wal_keep_size is reached then",
            within(left)
        ),
        Outlook::Disk(left) => format!(
            "at {a_second} of WAL a second ({} a day; {basis}) the server's disk fills up, for max_slot_wal_keep_size is not \
             set; how much room the disk has, the server does not tell; {} for the slot are reached {}",
            bytes((per_second * 86_400.0) as u64),
            bytes(alarms.retained_bytes[1]),
            within(left)
        ),
    }
}

fn within(left: Option<Duration>) -> String {
    left.map_or_else(|| "not in our time".to_owned(), |left| format!("in about {}", span(left)))
}

/// A time for people.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use schemas::Lsn;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn asked(change: impl FnOnce(&mut Look, &mut keeper::Slot)) -> Asked {
        let mut slot = keeper::Slot {
            plugin: Some("pgoutput".into()),
            database: Some("shop".into()),
            wal_status: Some("reserved".into()),
            restart_lsn: Some(Lsn(90 * MIB)),
            confirmed_lsn: Some(Lsn(95 * MIB)),
            ..keeper::Slot::default()
        };
        let mut look = Look {
            name: "tributary_shop".into(),
            database: "shop".into(),
            at_ms: 1_000_000,
            server_lsn: Lsn(100 * MIB),
            ..Look::default()
        };
        change(&mut look, &mut slot);
        look.slot = Some(slot);
        let grown = Rate { bytes: MIB, over: Duration::from_secs(1), basis: Basis::TwoLooks };
        Asked { look, grown: Some(grown) }
    }

    fn alarms() -> Alarms {
        Alarms { retained_bytes: [1 << 30, 10 << 30], behind_seconds: [300, 3600], room_percent: [50, 20] }
    }

    fn outlook(asked: &Asked) -> String {
        asked.slot(None, &alarms()).expect("there is one").outlook.unwrap_or_default()
    }

    #[test]
    fn how_long_a_slot_that_nobody_reads_lasts_is_said_with_its_basis() {
        let limited = asked(|look, slot| {
            look.keep_bytes = Some(4096 * MIB);
            slot.safe_wal_bytes = Some(3600 * MIB as i64);
        });
        let text = outlook(&limited);
        for word in ["1.0 MiB of WAL a second", "lost in about 1 h 0 min", "just now"] {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
        let text = outlook(&asked(|_, _| ()));
        for word in ["84.4 GiB a day", "disk", "does not tell", "10.0 GiB for the slot"] {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
        assert_eq!(outlook(&asked(|_, slot| slot.active_pid = Some(7))), "", "somebody reads from it");
        assert_eq!(outlook(&asked(|_, slot| slot.wal_status = Some("lost".into()))), "");
        let still = Asked { grown: Some(Rate { bytes: 0, ..limited.grown.expect("measured") }), ..limited };
        assert!(outlook(&still).contains("no WAL is written"));
    }

    #[test]
    fn a_lost_slot_is_not_sound_and_says_why() {
        let slot = asked(|_, slot| slot.invalidation_reason = Some("wal_removed".into())).slot(None, &alarms());
        let slot = slot.expect("there is one");
        assert!(!slot.is_sound);
        assert_eq!(slot.level, "critical");
        assert!(slot.reasons[0].contains("max_slot_wal_keep_size"), "{:?}", slot.reasons);
    }

    #[test]
    fn times_are_rounded_for_people() {
        let cases = [(59, "59 s"), (60, "1 min"), (3 * 3600 + 1500, "3 h 25 min"), (90_000, "1 d 1 h")];
        cases.into_iter().for_each(|(seconds, text)| assert_eq!(span(Duration::from_secs(seconds)), text));
    }
}
