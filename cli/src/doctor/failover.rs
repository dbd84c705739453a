//! What must be so that the source goes on after the promotion of a standby: at the primary, and at each standby of the url.

use postgres::config::TargetSession;
use postgres::{Client, Config, Error};

use super::Checks;

/// The first server with slots that standbys take along.
const VERSION_MIN: i32 = 170_000;

/// Looks at the primary, and at the standbys among the hosts. Only where the configuration asks for it.
pub(super) async fn check(checks: &mut Checks, client: &Client, config: &source::Config) -> Result<(), Error> {
    if !config.failover {
        return Ok(());
    }
    const QUERY: &str = "
        SELECT current_setting('server_version_num')::int, coalesce(current_setting('synchronized_standby_slots', true), ''),
               (SELECT (to_jsonb(s) ->> 'failover')::bool FROM pg_replication_slots s WHERE s.slot_name = $1)";
    let row = client.query_one(QUERY, &[&config.slot]).await;
    let row = row.map_err(|cause| Error::statement("read what a failover needs", cause))?;
    if row.get::<_, i32>(0) < VERSION_MIN {
        let remedy = "set it to false, or upgrade to PostgreSQL 17; before 17 the cluster's manager keeps slots (Patroni's permanent slots, pg_failover_slots)";
        checks.fault("failover", "source.failover is set, and the server is older than 17", remedy);
        return Ok(());
    }
    match row.get::<_, Option<bool>>(2) {
        Some(true) => checks.good("failover slot", "standbys take it along"),
        Some(false) => checks.good("failover slot", "not one yet: the source will make it so"),
        None => {}
    }
    waited_for(checks, client, row.get(1)).await?;
    let others: Vec<Config> = config.postgres.each().collect();
    if others.len() == 1 {
        let remedy =
            "name the standbys as further hosts of source.url, unless its name itself moves to the new primary";
        checks.warn("standbys", "source.url names one host, so they could not be looked at", remedy);
    }
    for one in others.into_iter().map(|one| Config { target_session: TargetSession::Any, ..one }) {
        let what = format!("standby {}", one.host());
        match postgres::connect(&one, "doctor").await {
            Ok(client) => standby(checks, &client, &what, &config.slot).await?,
            Err(error) => {
                checks.warn(what, service::chain(&error).to_string(), "after a failover it would not be found")
            }
        }
    }
    Ok(())
}

/// The standbys that must have what we are sent.
async fn waited_for(checks: &mut Checks, client: &Client, slots: &str) -> Result<(), Error> {
    let what = "synchronized_standby_slots";
    let names: Vec<&str> = slots.split(',').map(|name| name.trim().trim_matches('"')).collect();
    if slots.trim().is_empty() {
        let remedy = "name the physical slots of the standbys in it at the primary, else Kafka may hold what a new primary never had, and the source stops there";
        checks.warn(what, "empty", remedy);
        return Ok(());
    }
    let query = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical' AND active";
    let rows = client.query(query, &[]).await.map_err(|cause| Error::statement("read the physical slots", cause))?;
    let active: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let away: Vec<&str> = names.into_iter().filter(|name| *name != "*" && !active.iter().any(|a| a == name)).collect();
    let found = if away.is_empty() { slots.to_owned() } else { format!("{} is not streaming", away.join(", ")) };
    let remedy = "the source is sent nothing until it streams: bring that standby back, or take its slot out";
    checks.prefer(away.is_empty(), what, found, remedy);
    Ok(())
}

/// A standby takes our slot along only if four settings say so.
async fn standby(checks: &mut Checks, client: &Client, what: &str, slot: &str) -> Result<(), Error> {
    // The way to the primary may hold a password: it is only asked whether it names a database, where we may.
    const QUERY: &str = "
        SELECT pg_is_in_recovery(), current_setting('sync_replication_slots', true) = 'on',
               current_setting('hot_standby_feedback') = 'on', current_setting('primary_slot_name') <> '',
               CASE WHEN pg_has_role(current_user, 'pg_read_all_settings', 'usage')
                    THEN current_setting('primary_conninfo') ~ 'dbname' END,
               (SELECT CASE WHEN s.temporary THEN 'not ready yet' ELSE coalesce(to_jsonb(s) ->> 'invalidation_reason', '') END
                FROM pg_replication_slots s WHERE s.slot_name = $1 AND (to_jsonb(s) ->> 'synced')::bool)";
    let row = client.query_one(QUERY, &[&slot]).await;
    let row = row.map_err(|cause| Error::statement("read the settings of a standby", cause))?;
    if !row.get::<_, bool>(0) {
        return Ok(());
    }
    let lacking = lacking([row.get(1), Some(row.get(2)), Some(row.get(3)), row.get(4)]);
    let remedy = format!("at this standby: {}", lacking.join("; "));
    let found = if lacking.is_empty() { "takes slots along" } else { "does not take slots along" };
    checks.prefer(lacking.is_empty(), what, found, remedy);
    let remedy = "it gets ready while the slot moves; look into the standby's log if it does not";
    match row.get::<_, Option<&str>>(5) {
        Some("") => checks.good(format!("{what}, slot {slot}"), "there, and ready"),
        Some(state) => checks.warn(format!("{what}, slot {slot}"), state, remedy),
        None => checks.warn(format!("{what}, slot {slot}"), "not there", remedy),
    }
    Ok(())
}

/// What to set, of `sync_replication_slots`, `hot_standby_feedback`, `primary_slot_name` and the database in
/// `primary_conninfo`. The last is unknown to a role that may not read it.
fn lacking([sync, feedback, slot, database]: [Option<bool>; 4]) -> Vec<&'static str> {
    let settings = [
        (sync.unwrap_or(false), "sync_replication_slots = on"),
        (feedback.unwrap_or(false), "hot_standby_feedback = on"),
        (slot.unwrap_or(false), "primary_slot_name = its physical slot at the primary"),
        (database.unwrap_or(true), "dbname in primary_conninfo"),
    ];
    settings.into_iter().filter(|(is_there, _)| !is_there).map(|(_, setting)| setting).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_is_told_each_setting_that_it_lacks() {
        assert!(lacking([Some(true); 4]).is_empty());
        assert!(lacking([Some(true), Some(true), Some(true), None]).is_empty(), "it may not be read");
        let all = lacking([None, Some(false), Some(false), Some(false)]);
        assert_eq!(all.len(), 4);
        assert_eq!(lacking([Some(true), Some(false), Some(true), Some(true)]), ["hot_standby_feedback = on"]);
    }
}
