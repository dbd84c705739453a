//! Whether the source server has enough to bear without us: loads wait while its standbys lag or many sessions are at work.
//!
//! I/O, and what the answers mean. Streaming never waits for any of it.

use postgres::Error;
use postgres::tokio_postgres::Client;

/// How far the physical standbys are behind, and whether somebody may see that. What a logical slot feeds is no standby.
const REPLICA_LAG: &str = "
    SELECT coalesce(extract(epoch FROM max(r.replay_lag)), 0)::float8, coalesce(bool_and(r.state IS NOT NULL), true)
    FROM pg_stat_replication r
    WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')";

/// How many sessions are at work but for ours, and whether somebody may see that.
const ACTIVE_BACKENDS: &str = "
    SELECT count(*) FILTER (WHERE state = 'active'), coalesce(bool_and(state IS NOT NULL OR query <> '<insufficient privilege>'), true)
    FROM pg_stat_activity
    WHERE coalesce(backend_type, 'client backend') = 'client backend' AND application_name NOT LIKE 'tributary %'";

/// What a load waits for.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Seconds by which a physical standby may be behind; 0: no matter.
    pub replica_lag_seconds_max: u32,
    /// Sessions of others that may be at work; 0: no matter.
    pub active_backends_max: u32,
}

/// What a look showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strain {
    /// Nothing speaks against it.
    Bearable,
    /// A load has to wait, and for what.
    TooMuch(String),
    /// Our role may not see it: what is missing.
    Unseen(&'static str),
}

impl Limits {
    /// Whether anything is to be looked at.
    pub fn any(&self) -> bool {
        self.replica_lag_seconds_max > 0 || self.active_backends_max > 0
    }

    /// Looks once.
    pub async fn look(&self, client: &Client) -> Result<Strain, Error> {
        let failed = |cause| Error::statement("look at the load of the server", cause);
        let mut strain = Strain::Bearable;
        if self.replica_lag_seconds_max > 0 {
            let row = client.query_one(REPLICA_LAG, &[]).await.map_err(failed)?;
            strain = strain.and(self.lag(row.get(0), row.get(1)));
        }
        if self.active_backends_max > 0 {
            let row = client.query_one(ACTIVE_BACKENDS, &[]).await.map_err(failed)?;
            strain = strain.and(self.backends(row.get(0), row.get(1)));
        }
        Ok(strain)
    }

    fn lag(&self, seconds: f64, is_seen: bool) -> Strain {
        let most = self.replica_lag_seconds_max;
        match seconds > f64::from(most) {
            true => Strain::TooMuch(format!(
                "a standby is {seconds:.0} s behind (snapshot_replica_lag_seconds_max = {most})"
            )),
            false if is_seen => Strain::Bearable,
            false => Strain::Unseen("snapshot_replica_lag_seconds_max"),
        }
    }

    fn backends(&self, count: i64, is_seen: bool) -> Strain {
        let most = self.active_backends_max;
        match count > i64::from(most) {
            true => Strain::TooMuch(format!("{count} sessions are at work (snapshot_active_backends_max = {most})")),
            false if is_seen => Strain::Bearable,
            false => Strain::Unseen("snapshot_active_backends_max"),
        }
    }
}

impl Strain {
    /// Both, of which the one that a load has to wait for counts more.
    fn and(self, other: Strain) -> Strain {
        match (&self, &other) {
            (Strain::TooMuch(_), _) | (_, Strain::Bearable) => self,
            _ => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { replica_lag_seconds_max: 5, active_backends_max: 10 };

    #[test]
    fn a_load_waits_for_what_is_above_its_limit() {
        assert_eq!(LIMITS.lag(5.0, true), Strain::Bearable);
        assert!(matches!(LIMITS.lag(5.1, true), Strain::TooMuch(_)));
        assert_eq!(LIMITS.backends(10, true), Strain::Bearable);
        assert!(matches!(LIMITS.backends(11, false), Strain::TooMuch(_)));
        assert!(!Limits::default().any());
    }

    #[test]
    fn what_cannot_be_seen_stops_nothing_and_hides_nothing() {
        assert_eq!(LIMITS.lag(0.0, false), Strain::Unseen("snapshot_replica_lag_seconds_max"));
        let (unseen, busy) = (LIMITS.lag(0.0, false), LIMITS.backends(11, true));
        assert!(matches!(unseen.clone().and(busy.clone()), Strain::TooMuch(_)));
        assert!(matches!(busy.and(unseen.clone()), Strain::TooMuch(_)));
        assert_eq!(unseen.clone().and(Strain::Bearable), unseen);
    }
}
