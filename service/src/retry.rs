//! Waiting between attempts, for ever: capped, jittered, and never in silence. The only place that knows how delays grow.
//!
//! There is no limit to attempts: whoever gives up in silence loses what he was to deliver.

use std::error::Error;
use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;
use tokio_util::sync::CancellationToken;

use crate::chain::chain;

/// The first delay, before jitter.
const FIRST: Duration = Duration::from_millis(100);
/// The longest delay, before jitter of half of it up or down.
const DELAY_MAX: Duration = Duration::from_secs(20);

/// Delays that grow from 0.1 s to at most 30 s.
#[derive(Debug)]
pub struct Backoff(ExponentialBackoff);

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}

impl Backoff {
    /// Starts with the shortest delay.
    pub fn new() -> Backoff {
        Backoff(ExponentialBackoff {
            current_interval: FIRST,
            initial_interval: FIRST,
            randomization_factor: 0.5,
            multiplier: 2.0,
            max_interval: DELAY_MAX,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        })
    }

    /// How long to wait before the next attempt.
    pub fn delay(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(DELAY_MAX)
    }

    /// Waits before the next attempt. `false` if `stop` came first.
    pub async fn wait(&mut self, stop: &CancellationToken) -> bool {
        let delay = self.delay();
        stop.run_until_cancelled(tokio::time::sleep(delay)).await.is_some()
    }

    /// After a success: the next delay is the shortest again.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

/// Why [`forever`] ended without a success.
#[derive(Debug, thiserror::Error)]
pub enum Ended<E: Error + 'static> {
    /// The stop was asked for.
    #[error("stopped while waiting for another attempt")]
    Stopped,
    /// An error that no further attempt can cure.
    #[error(transparent)]
    Failed(#[from] E),
}

/// Attempts `operation` until it succeeds, fails with an error that is not `transient`, or `stop` is cancelled.
///
/// `what` completes the sentence "cannot …". A failure is logged as WARN once, again only when it is another one,
/// and the recovery as INFO.
pub async fn forever<T, E>(
    what: &str,
    stop: &CancellationToken,
    transient: impl Fn(&E) -> bool,
    mut operation: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, Ended<E>>
where
    E: Error + 'static,
{
    let mut backoff = Backoff::new();
    let mut outage = Outage::new(what);
    loop {
        let attempt = stop.run_until_cancelled(operation()).await.ok_or(Ended::Stopped)?;
        match attempt {
            Ok(success) => {
                outage.over();
                return Ok(success);
            }
            Err(error) if !transient(&error) => return Err(Ended::Failed(error)),
            Err(error) => outage.failed(&error),
        }
        if !backoff.wait(stop).await {
            return Err(Ended::Stopped);
        }
    }
}

/// Logs an outage as it begins, changes and ends, instead of each attempt. For loops that cannot be a [`forever`].
#[derive(Debug)]
pub struct Outage {
    what: String,
    /// The failure that was logged last.
    logged: Option<String>,
    attempts: u64,
}

impl Outage {
    /// `what` completes the sentence "cannot …".
    pub fn new(what: impl Into<String>) -> Outage {
        Outage { what: what.into(), logged: None, attempts: 0 }
    }

    /// An attempt failed.
    pub fn failed(&mut self, error: &(dyn Error + 'static)) {
        self.attempts += 1;
        let cause = chain(error).to_string();
        if self.logged.as_ref() == Some(&cause) {
            tracing::debug!(attempts = self.attempts, "still cannot {}: {cause}", self.what);
        } else {
            tracing::warn!("cannot {}, trying again until it succeeds: {cause}", self.what);
            self.logged = Some(cause);
        }
    }

    /// An attempt succeeded.
    pub fn over(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!(attempts = self.attempts, "recovered: could {} again", self.what);
        }
        self.attempts = 0;
    }

    /// Whether the last attempt failed.
    pub fn is_on(&self) -> bool {
        self.logged.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error, PartialEq, Eq)]
    #[error("attempt {0}")]
    struct Attempt(u32);

    #[test]
    fn delays_grow_to_a_cap_and_never_end() {
        let mut backoff = Backoff::new();
        let delays: Vec<Duration> = (0..1_000).map(|_| backoff.delay()).collect();
        assert!(delays[0] <= Duration::from_millis(150));
        assert!(delays.iter().all(|delay| *delay <= Duration::from_secs(30)));
        assert!(delays[999] >= Duration::from_secs(10));
        backoff.reset();
        assert!(backoff.delay() <= Duration::from_millis(150));
    }

    #[tokio::test]
    async fn a_transient_failure_is_retried_and_another_is_not() {
        let stop = CancellationToken::new();
        let mut attempts = 0;
        let ended = forever(
            "reach the answer",
            &stop,
            |error| *error != Attempt(3),
            async || {
                attempts += 1;
                Err::<(), _>(Attempt(attempts))
            },
        );
        assert!(matches!(ended.await, Err(Ended::Failed(Attempt(3)))));
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait_and_the_attempt() {
        let stop = CancellationToken::new();
        let waits = forever(
            "reach the answer",
            &stop,
            |_| true,
            async || {
                stop.cancel();
                Err::<(), _>(Attempt(0))
            },
        );
        assert!(matches!(waits.await, Err(Ended::Stopped)));
        let hangs = forever("hang", &stop, |_: &Attempt| true, std::future::pending::<Result<(), _>>);
        assert!(matches!(hangs.await, Err(Ended::Stopped)));
    }

    #[test]
    fn an_outage_is_on_until_it_is_over() {
        let mut outage = Outage::new("reach the answer");
        assert!(!outage.is_on());
        outage.failed(&Attempt(1));
        outage.failed(&Attempt(1));
        assert!(outage.is_on());
        outage.over();
        assert!(!outage.is_on());
    }
}
