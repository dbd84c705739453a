//! What a sink measures of itself.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::batch::Batch;
use crate::parked::Class;
use crate::record::Partition;
use crate::target::Done;

/// A batch is done.
pub(crate) fn batch(group: &str, partition: &Partition, batch: &Batch, done: &Done, took: Duration) {
    let labels = || [("group", group.to_owned()), ("topic", partition.topic.to_string())];
    counter!("tributary_sink_applied_total", &labels()).increment(done.applied);
    counter!("tributary_sink_skipped_total", &labels()).increment(done.skipped);
    histogram!("tributary_sink_batch_rows", &labels()).record(batch.len() as f64);
    histogram!("tributary_sink_batch_bytes", &labels()).record(batch.bytes() as f64);
    histogram!("tributary_sink_batch_seconds", &labels()).record(took);
    let dead = done.parked.iter().filter(|parked| parked.class == Class::Dead).count() as u64;
    counter!("tributary_sink_dead_total", &labels()).increment(dead);
    counter!("tributary_sink_parked_total", &labels()).increment(done.parked.len() as u64);
}

/// How many offsets of a partition are not done, true also while it is paused.
pub(crate) fn lag(group: &str, partition: &Partition, lag: i64) {
    let labels = [
        ("group", group.to_owned()),
        ("topic", partition.topic.to_string()),
        ("partition", partition.number.to_string()),
    ];
    gauge!("tributary_sink_lag", &labels).set(lag.max(0) as f64);
}
