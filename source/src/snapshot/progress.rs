//! What a person and a scraper see of the loads.
//!
//! Pure but for the log and the metrics. Decides nothing.

use std::time::{Duration, Instant};

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};
use schemas::TableName;

use super::plan::{Far, Finished};

/// How often all loads together say how far they are.
pub const TELL_EVERY: Duration = Duration::from_secs(10);

/// Tells what each metric means.
pub fn describe() {
    describe_counter!("tributary_source_chunk_rows_total", "rows that were read in chunks and published");
    describe_counter!("tributary_source_chunks_total", "chunks that were published");
    describe_counter!("tributary_source_chunks_again_total", "chunks that had to be read again, by reason");
    describe_gauge!("tributary_source_windows", "chunks that are open: being read, or on their way to their marker");
    describe_gauge!("tributary_source_tables_loading", "tables whose load is not done");
    describe_histogram!(
        "tributary_source_chunk_publish_seconds",
        Unit::Seconds,
        "how long the stream waited while a chunk was published"
    );
}

/// How far the loads were when they last said so.
#[derive(Debug)]
pub struct Progress {
    told: Instant,
    rows: u64,
}

impl Progress {
    /// Nothing was read so far.
    pub fn new(now: Instant) -> Progress {
        Progress { told: now, rows: 0 }
    }

    /// A chunk is committed.
    pub fn published(&mut self, rows: u64) {
        self.rows += rows;
        counter!("tributary_source_chunk_rows_total").increment(rows);
        counter!("tributary_source_chunks_total").increment(1);
    }

    /// All loads together, each time that [`TELL_EVERY`] has passed.
    pub fn tell(&mut self, far: Far, now: Instant) {
        let per_second = self.rows as f64 / now.duration_since(self.told).as_secs_f64().max(0.001);
        (self.told, self.rows) = (now, 0);
        if far.tables == 0 {
            return;
        }
        let Far { tables, rows, rows_estimated } = far;
        let rows_per_second = per_second.round() as u64;
        match left(far, per_second) {
            Some(left) => {
                tracing::info!(
                    tables,
                    rows,
                    of = rows_estimated,
                    rows_per_second,
                    seconds_left = left.as_secs(),
                    "loading"
                );
            }
            None => tracing::info!(tables, rows, of = rows_estimated, rows_per_second, "loading"),
        }
    }
}

/// When all is loaded, if it goes on like this and the tables hold what the server thinks.
fn left(far: Far, per_second: f64) -> Option<Duration> {
    let rows = far.rows_estimated.saturating_sub(far.rows) as f64;
    (per_second >= 1.0 && rows > 0.0).then(|| Duration::from_secs_f64(rows / per_second))
}

/// A chunk has to be read again.
pub fn again(table: &TableName, why: &'static str) {
    tracing::debug!(%table, why, "a chunk is read again");
    counter!("tributary_source_chunks_again_total", "reason" => why).increment(1);
}

/// The last of a task is done.
pub fn finished(finished: &Finished, now: Instant) {
    let Finished { table, rows, begun, is_load } = finished;
    let seconds = format!("{:.1}", now.duration_since(*begun).as_secs_f64());
    if *is_load {
        tracing::info!(%table, rows, %seconds, "loaded");
    } else {
        tracing::info!(%table, rows, "rows were read by their keys");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_the_pace() {
        let far = Far { tables: 1, rows: 1_000, rows_estimated: 3_000 };
        assert_eq!(left(far, 500.0), Some(Duration::from_secs(4)));
        assert_eq!(left(far, 0.0), None, "nobody knows");
        assert_eq!(left(Far { rows: 4_000, ..far }, 500.0), None, "there is more than the server thought");
    }
}
