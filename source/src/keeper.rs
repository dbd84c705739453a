//! The slot's keeper: looks at the replication slot every few seconds, whatever becomes of the sessions, and raises the alarm.
//!
//!     pg_replication_slots ──look──▶ Look ─────┐
//!     the loop ──LSN and commit time──▶ Ages ──┴─▶ judge ─▶ metrics, and one line in the log for each change of level
//!
//! It has a connection of its own: it is of most use when nothing is published, and then there is no session. It asks and
//! tells; what an answer means is [`judge`]'s to say, and what is done about it a person's.

mod judge;
mod metric;

use std::time::Duration;

use postgres::{Client, Error};
use schemas::Lsn;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

pub use judge::{
    Ages, Alarms, Basis, Known, Level, Look, Lost, Outlook, Rate, Reason, Slot, Unusable, Verdict, judge, outlook,
};

use crate::config::Config;
use judge::Alarm;

/// How often the slot is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A place in the WAL and when it was its end, in milliseconds since 1970 by the server's clock.
pub type Seen = Option<(Lsn, i64)>;

/// The columns of `pg_replication_slots` differ from 14 to 18: what a server does not know is null. On 16 every lost slot is
/// `conflicting`, but on a primary there is no recovery that it could conflict with.
const QUERY: &str = "
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8, current_database()::text,
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text,
           (SELECT nullif(setting::int8, -1) << 20 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
           (SELECT nullif(extract(epoch FROM (setting || ' ' || unit)::interval)::int8, 0)
            FROM pg_settings WHERE name = 'idle_replication_slot_timeout'),
           s.slot_name IS NOT NULL, s.slot_type = 'physical', s.plugin::text, s.database::text, s.temporary, s.active_pid,
           s.wal_status, s.safe_wal_size, s.restart_lsn::text, s.confirmed_flush_lsn::text,
           to_jsonb(s) ->> 'invalidation_reason', coalesce((to_jsonb(s) ->> 'conflicting')::bool AND pg_is_in_recovery(), false),
           (extract(epoch FROM (to_jsonb(s) ->> 'inactive_since')::timestamptz) * 1000)::int8,
           coalesce((to_jsonb(s) ->> 'failover')::bool, false), coalesce((to_jsonb(s) ->> 'synced')::bool, false)
    FROM (SELECT 1) AS one LEFT JOIN pg_replication_slots s ON s.slot_name = $1";

/// Asks the server for the slot `name`.
pub async fn look(client: &Client, name: &str) -> Result<Look, Error> {
    let row = client.query_one(QUERY, &[&name]).await;
    let row = row.map_err(|cause| Error::statement(format!("look at the slot {name}"), cause))?;
    let lsn = |at: usize| row.get::<_, Option<&str>>(at).and_then(|text| text.parse::<Lsn>().ok());
    let slot = row.get::<_, bool>(5).then(|| Slot {
        is_physical: row.get(6),
        plugin: row.get(7),
        database: row.get(8),
        is_temporary: row.get(9),
        active_pid: row.get(10),
        wal_status: row.get(11),
        safe_wal_bytes: row.get(12),
        restart_lsn: lsn(13),
        confirmed_lsn: lsn(14),
        invalidation_reason: row.get(15),
        is_conflicting: row.get(16),
        inactive_since_ms: row.get(17),
        is_failover: row.get(18),
        is_synced: row.get(19),
    });
    Ok(Look {
        name: name.to_owned(),
        at_ms: row.get(0),
        database: row.get(1),
        server_lsn: lsn(2).unwrap_or_default(),
        keep_bytes: row.get::<_, Option<i64>>(3).map(i64::unsigned_abs),
        idle_timeout: row.get::<_, Option<i64>>(4).map(|seconds| Duration::from_secs(seconds.unsigned_abs())),
        slot,
    })
}

/// How far the slot `name` is confirmed.
pub(crate) async fn confirmed(client: &Client, name: &str) -> Result<Lsn, crate::Error> {
    let slot = look(client, name).await?.slot.ok_or_else(|| crate::Error::SlotGone { slot: name.to_owned() })?;
    Ok(slot.confirmed_lsn.unwrap_or_default())
}

/// A running keeper; it ends when this is dropped.
#[derive(Debug)]
pub struct Keeper {
    seen: watch::Sender<Seen>,
    task: AbortHandle,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Keeper {
    /// Starts it on the current runtime.
    pub fn start(config: &Config) -> Keeper {
        metric::describe();
        let (seen, known) = watch::channel(None);
        let watch = Watch { config: config.clone(), known, ages: Ages::default(), alarm: Alarm::default() };
        Keeper { seen, task: tokio::spawn(watch.run()).abort_handle() }
    }

    /// For the sessions, which know when what they published was committed in the database.
    pub fn seen(&self) -> watch::Sender<Seen> {
        self.seen.clone()
    }
}

/// What the keeper's task owns.
struct Watch {
    config: Config,
    known: watch::Receiver<Seen>,
    ages: Ages,
    alarm: Alarm,
}

impl Watch {
    async fn run(mut self) {
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut client = None;
        loop {
            tick.tick().await;
            match self.look(&mut client).await {
                Ok(look) => self.tell(&look),
                // The session meets the same failure and tells of it.
                Err(error) => {
                    tracing::debug!("the slot's keeper cannot look: {}", service::chain(&error));
                    client = None;
                }
            }
        }
    }

    async fn look(&self, client: &mut Option<Client>) -> Result<Look, Error> {
        let connected = match client.take() {
            Some(client) => client,
            None => postgres::connect(&self.config.postgres, "keeper").await?,
        };
        look(client.insert(connected), &self.config.slot).await
    }

    fn tell(&mut self, look: &Look) {
        let seen = *self.known.borrow_and_update();
        if let Some((lsn, at_ms)) = seen {
            self.ages.note(lsn, at_ms);
        }
        self.ages.note(look.server_lsn, look.at_ms);
        let confirmed = look.slot.as_ref().and_then(|slot| slot.confirmed_lsn);
        let known = Known {
            age_seconds: confirmed.and_then(|lsn| self.ages.seconds(lsn, look.at_ms)),
            // Whoever told of a place has a state, and so a slot. Before that a first start may make its slot anew.
            is_expected: seen.is_some(),
        };
        let verdict = judge(look, &known, &self.config.alarms);
        metric::tell(look, &known, verdict.level);
        let Some(level) = self.alarm.hear(verdict.level, look.at_ms) else { return };
        let reasons = verdict.reasons.iter().map(|reason| format!("{}: {}", reason.found, reason.remedy));
        let text = reasons.collect::<Vec<_>>().join("; ");
        match level {
            Level::Ok => tracing::info!(slot = look.name, "the slot is in order again"),
            Level::Warning => tracing::warn!("{text}"),
            Level::Critical => tracing::error!("{text}"),
        }
    }
}
