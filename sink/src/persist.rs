//! Trying until it succeeds: what may pass is waited for, and said once.

use futures::future::BoxFuture;
use service::retry::{Backoff, Outage};
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Attempts `operation` until it succeeds or fails for good. `None` if `stop` came first. `what` completes "cannot …".
///
/// The attempts are boxed, so that whoever spawns a task around this need not prove anew for each that it may move between threads.
pub(crate) async fn persist<'f, R>(
    what: String,
    stop: &CancellationToken,
    mut operation: impl FnMut() -> BoxFuture<'f, Result<R, Error>>,
) -> Result<Option<R>, Error> {
    let (mut backoff, mut outage) = (Backoff::new(), Outage::new(what));
    loop {
        match stop.run_until_cancelled(operation()).await {
            None => return Ok(None),
            Some(Ok(result)) => {
                outage.over();
                return Ok(Some(result));
            }
            Some(Err(error)) if !error.is_transient() => return Err(error),
            Some(Err(error)) => outage.failed(&error),
        }
        if !backoff.wait(stop).await {
            return Ok(None);
        }
    }
}
