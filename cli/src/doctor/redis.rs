//! The Redis that notices go to.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::RedisResult;
use sink::config::Redis;

use super::{Check, Checks};

/// The oldest release with what the scripts use.
const VERSION_MIN: (u32, u32) = (6, 2);

/// How long it may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Looks at Redis.
pub(super) async fn check(config: &Redis) -> Vec<Check> {
    let mut checks = Checks::of("redis");
    match tokio::time::timeout(TIMEOUT, information(config)).await {
        Ok(Ok(information)) => {
            checks.good("connection", config.address.clone());
            judge(&mut checks, &information);
        }
        // What the client says may quote the url, and with it a password.
        Ok(Err(error)) => {
            let found = format!("cannot use {}: {}", config.address, error.category());
            checks.fault(
                "connection",
                found,
                "check url and password of [redis], and that Redis runs and listens there",
            );
        }
        Err(_) => {
            let found = format!("{} did not answer within {} s", config.address, TIMEOUT.as_secs());
            checks.fault(
                "connection",
                found,
                "check host and port of [redis] url, and that Redis runs and listens there",
            );
        }
    }
    checks.list
}

async fn information(config: &Redis) -> RedisResult<BTreeMap<String, String>> {
    let client = redis::Client::open(config.url.expose())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let text: String = redis::cmd("INFO").query_async(&mut connection).await?;
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

fn judge(checks: &mut Checks, information: &BTreeMap<String, String>) {
    let value = |name: &str| information.get(name).map(String::as_str).unwrap_or_default();
    let version = value("redis_version");
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    checks.expect(release >= VERSION_MIN, "version", version, "upgrade Redis to 6.2 or later");
    let remedy = "point [redis] url at the primary: progress and notices are written in one script";
    checks.expect(value("role") == "master", "role of the server", value("role"), remedy);
    let policy = value("maxmemory_policy");
    let is_bounded = value("maxmemory") != "0" && !value("maxmemory").is_empty();
    let remedy = "CONFIG SET maxmemory-policy noeviction: the progress of the groups must not be thrown out";
    checks.prefer(!is_bounded || policy == "noeviction" || policy.starts_with("volatile"), "eviction", policy, remedy);
    let is_cluster = value("cluster_enabled") == "1";
    let remedy = "use a single primary: one script cannot write to several nodes of a cluster";
    checks.expect(!is_cluster, "cluster mode", if is_cluster { "on" } else { "off" }, remedy);
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    fn grades(pairs: &[(&str, &str)]) -> Vec<Grade> {
        let mut checks = Checks::of("redis");
        let information = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        judge(&mut checks, &information);
        checks.list.into_iter().map(|check| check.grade).collect()
    }

    #[test]
    fn what_redis_says_of_itself_is_judged() {
        use Grade::{Fault, Good, Warning};
        let good =
            [("redis_version", "7.0.15"), ("role", "master"), ("maxmemory", "0"), ("maxmemory_policy", "allkeys-lru")];
        assert_eq!(grades(&good), [Good, Good, Good, Good]);
        let bad = [
            ("redis_version", "6.0.1"),
            ("role", "slave"),
            ("maxmemory", "1000000"),
            ("maxmemory_policy", "allkeys-lru"),
            ("cluster_enabled", "1"),
        ];
        assert_eq!(grades(&bad), [Fault, Fault, Warning, Fault]);
    }
}
