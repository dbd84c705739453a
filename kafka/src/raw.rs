//! The few calls of librdkafka that the crate `rdkafka` lacks, or has in a form that costs too much.
//!
//! `rdkafka`'s own `flush`, and so its `commit_transaction`, sleeps in steps of 100 ms beside a polling thread; it cannot
//! describe topics, so it knows no topic ids. The only module with `unsafe`: each function is one call, its results copied
//! out before it returns, and nothing here decides anything.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka_sys as sys;

use crate::error::Cause;

/// A topic as the cluster describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) name: String,
    /// High and low half of the topic's id.
    pub(crate) id: (u64, u64),
    pub(crate) partitions: Vec<Partition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) number: i32,
    pub(crate) has_leader: bool,
    pub(crate) replicas: usize,
    pub(crate) in_sync: usize,
}

/// Sends what is queued at once and waits until all of it is acknowledged or failed, and until the reports of the failed
/// ones have been served. True when nothing is left.
pub(crate) fn flush<C: ClientContext>(client: &Client<C>, timeout: Duration) -> Result<bool, Cause> {
    // SAFETY: the pointer is that of a live client, as the borrow lasts over the call; librdkafka's calls are thread-safe.
    let code = unsafe { sys::rd_kafka_flush(client.native_ptr(), millis(timeout)) };
    match code.into() {
        RDKafkaErrorCode::NoError => Ok(true),
        RDKafkaErrorCode::OperationTimedOut => Ok(false),
        code => Err(Cause::of_code(code)),
    }
}

/// Commits the open transaction, or goes on with a commit that has timed out.
pub(crate) fn commit_transaction<C: ClientContext>(client: &Client<C>, timeout: Duration) -> Result<(), Cause> {
    // SAFETY: as in `flush`; the returned error, when there is one, is ours and goes to `taken`.
    taken(unsafe { sys::rd_kafka_commit_transaction(client.native_ptr(), millis(timeout)) })
}

/// Describes those of `names` that exist. Creates none.
pub(crate) fn describe_topics<C: ClientContext>(
    client: &Client<C>,
    names: &[&str],
    timeout: Duration,
) -> Result<Vec<Description>, Cause> {
    let names = names.iter().map(|&name| CString::new(name)).collect::<Result<Vec<_>, _>>();
    let names = names.map_err(|_| Cause::of_code(RDKafkaErrorCode::InvalidTopic))?;
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();

    // SAFETY: the client lives over the call (see `flush`). The names live to the end of the function, and librdkafka copies
    // them besides. Each object made here is destroyed here, after its last use, and the queue before the client. The
    // request is bounded by its timeout and always answers with an event, so the poll without limit ends.
    unsafe {
        let rk = client.native_ptr();
        let queue = sys::rd_kafka_queue_new(rk);
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let options = sys::rd_kafka_AdminOptions_new(rk, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS);
        let mut refusal = [0; 256];
        sys::rd_kafka_AdminOptions_set_request_timeout(options, millis(timeout), refusal.as_mut_ptr(), refusal.len());
        sys::rd_kafka_DescribeTopics(rk, topics, options, queue);
        let event = sys::rd_kafka_queue_poll(queue, -1);
        let described = described(event);
        sys::rd_kafka_event_destroy(event);
        sys::rd_kafka_AdminOptions_destroy(options);
        sys::rd_kafka_TopicCollection_destroy(topics);
        sys::rd_kafka_queue_destroy(queue);
        described
    }
}

/// # Safety
/// `event` must be the answer to a DescribeTopics, not yet destroyed.
unsafe fn described(event: *mut sys::rd_kafka_event_t) -> Result<Vec<Description>, Cause> {
    // SAFETY: all that is read belongs to the event, which outlives this function; the arrays have the lengths returned
    // with them, and the strings end with a zero.
    unsafe {
        let code = RDKafkaErrorCode::from(sys::rd_kafka_event_error(event));
        if code != RDKafkaErrorCode::NoError {
            return Err(Cause { code, text: text(sys::rd_kafka_event_error_string(event)) });
        }
        let mut count = 0;
        let topics =
            sys::rd_kafka_DescribeTopics_result_topics(sys::rd_kafka_event_DescribeTopics_result(event), &mut count);
        let mut descriptions = Vec::with_capacity(count);
        for index in 0..count {
            let topic = *topics.add(index);
            let error = sys::rd_kafka_TopicDescription_error(topic);
            match RDKafkaErrorCode::from(sys::rd_kafka_error_code(error)) {
                RDKafkaErrorCode::NoError => descriptions.push(description(topic)),
                RDKafkaErrorCode::UnknownTopicOrPartition => {}
                code => return Err(Cause { code, text: text(sys::rd_kafka_error_string(error)) }),
            }
        }
        Ok(descriptions)
    }
}

/// # Safety
/// `topic` must belong to an event that is not yet destroyed.
unsafe fn description(topic: *const sys::rd_kafka_TopicDescription_t) -> Description {
    // SAFETY: as in `described`. A topic described without an error has an id.
    unsafe {
        let id = sys::rd_kafka_TopicDescription_topic_id(topic);
        let mut count = 0;
        let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &mut count);
        let partitions = (0..count).map(|index| {
            let partition = *partitions.add(index);
            let (mut replicas, mut in_sync) = (0, 0);
            sys::rd_kafka_TopicPartitionInfo_replicas(partition, &mut replicas);
            sys::rd_kafka_TopicPartitionInfo_isr(partition, &mut in_sync);
            Partition {
                number: sys::rd_kafka_TopicPartitionInfo_partition(partition),
                has_leader: !sys::rd_kafka_TopicPartitionInfo_leader(partition).is_null(),
                replicas,
                in_sync,
            }
        });
        Description {
            name: text(sys::rd_kafka_TopicDescription_name(topic)),
            id: (
                sys::rd_kafka_Uuid_most_significant_bits(id).cast_unsigned(),
                sys::rd_kafka_Uuid_least_significant_bits(id).cast_unsigned(),
            ),
            partitions: partitions.collect(),
        }
    }
}

/// Copies an error out and destroys it; none is success.
fn taken(error: *mut sys::rd_kafka_error_t) -> Result<(), Cause> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: librdkafka gave us this error to own; it is read, then destroyed, and not used again.
    unsafe {
        let code = RDKafkaErrorCode::from(sys::rd_kafka_error_code(error));
        let text = text(sys::rd_kafka_error_string(error));
        sys::rd_kafka_error_destroy(error);
        Err(Cause { code, text })
    }
}

/// # Safety
/// `text` must be null or a string that ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
