//! The source's own state, for the commands that show or check it.

use std::time::{Duration, Instant};

use crate::configuration::Configuration;

/// How long the state topic may take to be read.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Reads it; none where the source never started.
pub(crate) async fn read(configuration: &Configuration) -> Result<Option<source::State>, source::Error> {
    let (kafka, prefix) = (configuration.kafka.clone(), configuration.prefix.clone());
    let deadline = Instant::now() + TIMEOUT;
    let read = tokio::task::spawn_blocking(move || source::read_state(&kafka, &prefix, &|| Instant::now() > deadline));
    match read.await {
        Ok(Err(source::Error::Kafka(kafka::Error::NoTopic(_)))) => Ok(None),
        Ok(state) => state,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}
