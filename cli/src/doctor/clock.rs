//! Whether a server's clock agrees with ours. Times stand in events and logs; nothing is decided by them.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use postgres::{Client, Error};

use super::Checks;

/// From so many seconds on, times of two machines in one log mislead.
const SKEW_SECONDS_MAX: f64 = 1.0;

/// Asks the server for its time.
pub(super) async fn check(checks: &mut Checks, client: &Client) -> Result<(), Error> {
    let asked = Instant::now();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let row = client.query_one("SELECT extract(epoch FROM clock_timestamp())::float8", &[]).await;
    let theirs: f64 = row.map_err(|cause| Error::statement("ask for the time", cause))?.get(0);
    // The answer was given about half way.
    let skew = theirs - (before + asked.elapsed().as_secs_f64() / 2.0);
    let (found, is_good) = judge(skew);
    checks.prefer(is_good, "clock", found, "let both machines keep time by NTP (chrony, systemd-timesyncd)");
    Ok(())
}

fn judge(skew: f64) -> (String, bool) {
    let direction = if skew < 0.0 { "behind" } else { "ahead of" };
    (format!("{:.3} s {direction} this machine", skew.abs()), skew.abs() <= SKEW_SECONDS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_borne_and_more_is_not() {
        assert_eq!(judge(0.25), ("0.250 s ahead of this machine".to_owned(), true));
        assert_eq!(judge(-2.5), ("2.500 s behind this machine".to_owned(), false));
    }
}
