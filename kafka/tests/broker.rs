//! The promises of this crate against a real broker: what is visible when, who is fenced, what is refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::stack::Addresses;
use kafka::admin::{Admin, NewTopic, Offsets};
use kafka::producer::{Plain, Publisher, Record};
use kafka::topic::{Event, Isolation, Tail, read_all};
use kafka::{Config, Error, Severity};
use service::config::Document;

const NEVER: &dyn Fn() -> bool = &|| false;

fn config() -> Config {
    let addresses = Addresses::of_this_run().expect("the servers run");
    configured(&format!("[kafka]\nbrokers = 'kafka://{}'", addresses.kafka))
}

fn configured(text: &str) -> Config {
    let document = Document::parse(text, std::iter::empty()).expect("the text is TOML");
    let config = Config::read(&mut document.root().section("kafka"));
    document.finish().expect("the configuration has no fault");
    config
}

/// A name that no other test of this run has, and no earlier run on the same broker.
fn fresh(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("the clock is set");
    format!("{name}.{}.{}", now.as_micros(), COUNT.fetch_add(1, Ordering::Relaxed))
}

async fn topic(config: &Config, name: &str, partitions: i32, settings: &[(&str, &str)]) -> String {
    let name = fresh(name);
    let settings = settings.iter().map(|&(key, value)| (key, value.to_owned())).collect();
    let admin = Admin::connect(config).expect("the settings are good");
    let new = NewTopic { name: &name, partitions, replication: 1, settings };
    admin.create(&[new]).await.expect("the topic can be made");
    name
}

fn publisher(config: &Config, id: &str) -> Publisher {
    let mut publisher = Publisher::connect(config, id).expect("the settings are good");
    publisher.init(NEVER).expect("the broker answers");
    publisher
}

fn text<'a>(topic: &'a str, partition: i32, value: &'a str) -> Record<'a> {
    Record { topic, partition, key: Some(b"k"), value: Some(value.as_bytes()), headers: &[] }
}

/// What a reader sees of a topic, as `partition:value`.
fn seen(config: &Config, topic: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let each = |record: &kafka::topic::Record<'_>| {
        let value = record.value().map_or("null".into(), String::from_utf8_lossy);
        seen.push(format!("{}:{value}", record.partition()));
        Ok::<_, Error>(())
    };
    read_all(config, topic, Isolation::ReadCommitted, NEVER, each).expect("the topic can be read");
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_seen_whole_after_its_commit_and_not_before() {
    let config = config();
    let topic = topic(&config, "whole", 2, &[]).await;
    let mut publisher = publisher(&config, &topic);

    publisher.begin().expect("initialised");
    publisher.commit(NEVER).expect("an empty transaction costs nothing");

    publisher.begin().expect("the last one is committed");
    for value in ["a", "b", "c"] {
        publisher.send(&text(&topic, 1, value), NEVER).expect("there is room");
    }
    publisher.send(&text(&topic, 0, "d"), NEVER).expect("there is room");
    assert_eq!(seen(&config, &topic), Vec::<String>::new());
    publisher.commit(NEVER).expect("the broker is there");

    let mut now = seen(&config, &topic);
    now.sort_by_key(|line| line.starts_with('1'));
    assert_eq!(now, ["0:d", "1:a", "1:b", "1:c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_values_and_headers_come_back_as_they_were_given() {
    let config = config();
    let topic = topic(&config, "forms", 1, &[]).await;
    let mut publisher = publisher(&config, &topic);
    let headers: &[(&str, &[u8])] = &[("position", b"0A"), ("seq", b"1"), ("schema", b"\x00\xff")];
    type Form<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);
    let forms: [Form<'_>; 4] =
        [(Some(b"key"), Some(b"value")), (Some(b"key"), None), (None, Some(b"control")), (Some(b""), Some(b""))];
    publisher.begin().expect("initialised");
    for (key, value) in forms {
        let record = Record { topic: &topic, partition: 0, key, value, headers };
        publisher.send(&record, NEVER).expect("there is room");
    }
    publisher.commit(NEVER).expect("the broker is there");

    let mut read = Vec::new();
    let each = |record: &kafka::topic::Record<'_>| {
        for (name, value) in headers {
            assert_eq!(record.header(name), Some(*value));
        }
        assert_eq!(record.header("other"), None);
        assert!(record.timestamp_ms().is_some_and(|ms| ms > 0));
        read.push((record.key().map(<[u8]>::to_vec), record.value().map(<[u8]>::to_vec)));
        Ok::<_, Error>(())
    };
    read_all(&config, &topic, Isolation::ReadCommitted, NEVER, each).expect("the topic can be read");
    let expected: Vec<_> =
        forms.iter().map(|(key, value)| (key.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec))).collect();
    assert_eq!(read, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_at_once_take_milliseconds_not_a_tenth_of_a_second() {
    let config = config();
    let topic = topic(&config, "cycles", 4, &[]).await;
    let mut publisher = publisher(&config, &topic);
    let mut times = Vec::new();
    for round in 0..200 {
        let began = Instant::now();
        publisher.begin().expect("the last one is committed");
        for partition in 0..4 {
            publisher.send(&text(&topic, partition, &round.to_string()), NEVER).expect("there is room");
        }
        publisher.commit(NEVER).expect("the broker is there");
        times.push(began.elapsed());
    }
    times.sort();
    println!("begin to committed: p50 {:?}, p90 {:?}, p99 {:?}", times[100], times[180], times[198]);
    // `rdkafka`'s own commit is never below 100 ms; on a quiet machine ours takes 5.
    assert!(times[100] < Duration::from_millis(90), "p50 {:?}", times[100]);
    assert_eq!(seen(&config, &topic).len(), 800);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_fences_and_nothing_of_the_predecessor_becomes_visible() {
    let config = config();
    let topic = topic(&config, "fence", 1, &[]).await;
    let mut first = publisher(&config, &topic);
    first.begin().expect("initialised");
    first.send(&text(&topic, 0, "committed"), NEVER).expect("there is room");
    first.commit(NEVER).expect("the broker is there");
    first.begin().expect("the last one is committed");
    first.send(&text(&topic, 0, "open"), NEVER).expect("there is room");

    let mut second = publisher(&config, &topic);
    assert_eq!(seen(&config, &topic), ["0:committed"], "after init the state is what it will ever be");
    let refused = match first.send(&text(&topic, 0, "late"), NEVER) {
        Ok(()) => first.commit(NEVER).expect_err("fenced"),
        Err(error) => error,
    };
    assert!(matches!(refused, Error::Fenced { .. }), "{refused:?}");
    assert_eq!(refused.severity(), Severity::Transient);
    assert!(matches!(first.begin(), Err(Error::Failed { .. })), "a failed publisher stays failed");

    second.begin().expect("initialised");
    second.send(&text(&topic, 0, "second"), NEVER).expect("there is room");
    second.commit(NEVER).expect("the successor may");
    assert_eq!(seen(&config, &topic), ["0:committed", "0:second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_transaction_is_aborted_by_the_successor() {
    let config = config();
    let topic = topic(&config, "dropped", 1, &[]).await;
    let mut first = publisher(&config, &topic);
    first.begin().expect("initialised");
    first.send(&text(&topic, 0, "open"), NEVER).expect("there is room");
    drop(first);
    let began = Instant::now();
    let mut second = publisher(&config, &topic);
    println!("init after a dropped open transaction: {:?}", began.elapsed());
    second.begin().expect("initialised");
    second.send(&text(&topic, 0, "next"), NEVER).expect("there is room");
    second.commit(NEVER).expect("the broker is there");
    assert_eq!(seen(&config, &topic), ["0:next"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_too_large_fails_its_transaction_before_it_is_sent() {
    let config = config();
    let topic = topic(&config, "large", 1, &[("max.message.bytes", "2000000")]).await;
    let mut publisher = publisher(&config, &topic);
    publisher.limit(&topic, 2_000_000).expect("above our batch");
    publisher.begin().expect("initialised");
    publisher.send(&text(&topic, 0, "small"), NEVER).expect("there is room");
    let fits = "x".repeat(1_900_000);
    publisher.send(&text(&topic, 0, &fits), NEVER).expect("below the limit");
    let large = "x".repeat(2_000_000);
    let refused = publisher.send(&text(&topic, 0, &large), NEVER).expect_err("above the limit");
    assert!(matches!(&refused, Error::TooLarge { bytes, limit: 2_000_000, .. } if *bytes > 2_000_000), "{refused:?}");
    assert_eq!(refused.severity(), Severity::Fatal);
    // librdkafka by itself would commit without the record.
    assert!(matches!(publisher.commit(NEVER), Err(Error::Failed { .. })));
    drop(publisher);
    let mut next = Publisher::connect(&config, &topic).expect("the settings are good");
    next.init(NEVER).expect("the broker answers");
    assert_eq!(seen(&config, &topic), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_finds_too_large_is_fatal_and_names_the_topic() {
    let config = config();
    let topic =
        topic(&config, "told-nothing", 1, &[("max.message.bytes", "10000"), ("compression.type", "uncompressed")])
            .await;
    let mut publisher = publisher(&config, &topic);
    let refused = publisher.limit(&topic, 10_000).expect_err("a batch of ours would not fit");
    assert!(matches!(refused, Error::BatchLimit { .. }), "{refused:?}");

    publisher.begin().expect("initialised");
    publisher.send(&text(&topic, 0, &"x".repeat(20_000)), NEVER).expect("nobody told the limit");
    let refused = publisher.commit(NEVER).expect_err("the broker refuses the batch");
    println!("too large for the broker: {refused}: {:?}", std::error::Error::source(&refused));
    assert!(matches!(&refused, Error::Publish { topic: t, partition: 0, .. } if *t == topic), "{refused:?}");
    assert_eq!(refused.severity(), Severity::Fatal);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_partition_fails_the_transaction() {
    let config = config();
    let topic = topic(&config, "partitions", 1, &[]).await;
    let mut publisher = publisher(&config, &topic);
    publisher.begin().expect("initialised");
    publisher.send(&text(&topic, 0, "first"), NEVER).expect("there is room");
    // Once the topic's metadata is there the refusal comes at once, before that with the commit.
    let refused = match publisher.send(&text(&topic, 7, "beyond"), NEVER) {
        Ok(()) => publisher.commit(NEVER).expect_err("there is no partition 7"),
        Err(error) => error,
    };
    assert!(matches!(&refused, Error::Publish { partition: 7, .. }), "{refused:?}");
    assert!(publisher.commit(NEVER).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_topic_fails_the_commit() {
    let config = config();
    let topic = fresh("nowhere");
    let mut publisher = publisher(&config, &topic);
    publisher.begin().expect("initialised");
    publisher.send(&text(&topic, 0, "lost?"), NEVER).expect("not yet known to be wrong");
    let began = Instant::now();
    let refused = publisher.commit(NEVER).expect_err("there is no such topic");
    println!("unknown topic after {:?}: {refused}: {:?}", began.elapsed(), std::error::Error::source(&refused));
    assert!(matches!(&refused, Error::Publish { topic: t, .. } if *t == topic), "{refused:?}");
    assert!(matches!(read_all(&config, &topic, Isolation::ReadCommitted, NEVER, |_| Ok(())), Err(Error::NoTopic(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_made_once_and_described() {
    let config = config();
    let admin = Admin::connect(&config).expect("the settings are good");
    let (name, other) = (fresh("made"), fresh("absent"));
    let new = || {
        let settings = vec![("cleanup.policy", "compact".to_owned()), ("retention.ms", "3600000".to_owned())];
        NewTopic { name: &name, partitions: 3, replication: 1, settings }
    };
    admin.create(&[new()]).await.expect("it can be made");
    let first = admin.topics(&[&name, &other]).await.expect("the broker answers");
    admin.create(&[new()]).await.expect("made already is no error");
    let second = admin.topics(&[&name]).await.expect("the broker answers");
    assert_eq!(first, second, "the absent one is left out, the id stays");
    let topic = &first[&name];
    assert_eq!((topic.partitions, topic.replication, topic.in_sync), (3, 1, 1));
    assert_eq!((topic.id.len(), topic.settings.cleanup_policy.as_str()), (22, "compact"));
    assert_eq!(topic.settings.retention_ms, 3_600_000);
    assert_eq!(topic.settings.max_message_bytes, 1_048_588);
    assert!(!topic.settings.unclean_leader_election);

    let too_many = NewTopic { name: &other, partitions: 1, replication: 9, settings: vec![] };
    let refused = admin.create(&[too_many]).await.expect_err("there is one broker");
    assert_eq!(refused.severity(), Severity::Fatal, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_offsets_and_groups_are_told() {
    let config = config();
    let admin = Admin::connect(&config).expect("the settings are good");
    let cluster = admin.cluster().await.expect("the broker answers");
    assert!(cluster.id.is_some());
    let settings = admin.broker_settings(cluster.brokers[0].0).await.expect("the broker answers");
    assert!(settings.contains_key("transaction.partition.verification.enable"), "3.6 or later");

    let topic = topic(&config, "offsets", 2, &[]).await;
    let mut publisher = publisher(&config, &topic);
    publisher.begin().expect("initialised");
    publisher.send(&text(&topic, 1, "a"), NEVER).expect("there is room");
    publisher.commit(NEVER).expect("the broker is there");
    // The record and the transaction's marker.
    assert_eq!(
        admin.offsets(&topic, 2).await.expect("answered"),
        [Offsets { start: 0, end: 0 }, Offsets { start: 0, end: 2 }]
    );

    let group = fresh("group");
    assert_eq!(admin.group(&group).await.expect("answered"), None);
    assert!(admin.committed(&group, &[(&topic, 2)]).await.expect("answered").is_empty());
    join(&config, &group, &topic).await;
    let committed = admin.committed(&group, &[(&topic, 2)]).await.expect("answered");
    assert_eq!(committed.into_iter().collect::<Vec<_>>(), [((topic, 1), 1)]);
}

/// Joins a group, looks at it from outside while it is there, and commits what it has read.
async fn join(config: &Config, group: &str, topic: &str) {
    use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
    use rdkafka::message::Message;
    let mut settings = config.client();
    settings.set("group.id", group).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    settings.set("partition.assignment.strategy", "cooperative-sticky");
    let consumer: BaseConsumer = settings.create().expect("the settings are good");
    consumer.subscribe(&[topic]).expect("a good name");
    let deadline = Instant::now() + Duration::from_secs(30);
    let message = loop {
        assert!(Instant::now() < deadline, "no record came");
        match consumer.poll(Duration::from_millis(100)) {
            Some(message) => break message.expect("no error"),
            None => continue,
        }
    };
    let admin = Admin::connect(config).expect("the settings are good");
    let seen = admin.group(group).await.expect("answered").expect("it has a member");
    assert_eq!((seen.state.as_str(), seen.members.len()), ("Stable", 1), "{seen:?}");
    assert_eq!(seen.members[0].client_id, "tributary");
    assert_eq!(seen.members[0].partitions, [(topic.to_owned(), 0), (topic.to_owned(), 1)]);
    assert_eq!(message.offset(), 0);
    consumer.commit_message(&message, CommitMode::Sync).expect("the broker is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_producer_tells_what_became_of_each_record() {
    let config = config();
    let topic = topic(&config, "plain", 1, &[("max.message.bytes", "100000")]).await;
    let mut plain = Plain::connect(&config).expect("the settings are good");
    plain.send(7, &text(&topic, 0, "a"), NEVER).expect("there is room");
    let done = plain.flush(NEVER).expect("the broker is there");
    assert!(matches!(&done[..], [only] if only.tag == 7 && matches!(only.result, Ok(0))), "{done:?}");

    let incompressible: String =
        (0_u64..40_000).map(|n| format!("{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    plain.send(8, &text(&topic, 0, &incompressible), NEVER).expect("nobody told the limit");
    let done = plain.flush(NEVER).expect("the broker is there");
    assert!(matches!(&done[..], [only] if only.tag == 8 && only.result.is_err()), "{done:?}");
    assert!(plain.flush(NEVER).expect("nothing is open").is_empty());
    plain.send(9, &text(&topic, 0, "b"), NEVER).expect("there is room");
    let done = plain.flush(NEVER).expect("the broker is there");
    assert!(
        matches!(&done[..], [only] if only.tag == 9 && only.result.is_ok()),
        "a refused record stands alone: {done:?}"
    );
    assert_eq!(seen(&config, &topic), ["0:a", "0:b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_written_to_all_the_time_has_an_end() {
    let config = config();
    let topic = topic(&config, "busy", 1, &[]).await;
    let mut publisher = publisher(&config, &topic);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                publisher.begin().expect("the last one is committed");
                publisher.send(&text(&topic, 0, &round.to_string()), NEVER).expect("there is room");
                publisher.commit(NEVER).expect("the broker is there");
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let began = Instant::now();
        let each = |_: &kafka::topic::Record<'_>| match began.elapsed() {
            elapsed if elapsed > Duration::from_secs(20) => Err(Error::Stopped("find the end of a topic")),
            _ => Ok(()),
        };
        let read = (0..5).try_for_each(|_| read_all(&config, &topic, Isolation::ReadCommitted, NEVER, each));
        stop.store(true, Ordering::Relaxed);
        read.expect("what was written meanwhile is another reading's");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_says_when_it_has_caught_up_and_goes_on() {
    let config = config();
    let topic = topic(&config, "tail", 1, &[]).await;
    let mut publisher = publisher(&config, &topic);
    let mut tail = Tail::start(&config, &topic, Isolation::ReadCommitted).expect("the broker answers");
    for round in 0..3 {
        let value = round.to_string();
        publisher.begin().expect("the last one is committed");
        publisher.send(&text(&topic, 0, &value), NEVER).expect("there is room");
        publisher.commit(NEVER).expect("the broker is there");
        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            assert!(Instant::now() < deadline, "neither record nor end");
            match tail.next(Duration::from_millis(100)).expect("no error") {
                Some(Event::Record(record)) => seen.push(record.value().expect("no tombstone").to_vec()),
                Some(Event::End { partition: 0 }) if !seen.is_empty() => break,
                _ => {}
            }
        }
        assert_eq!(seen, [value.into_bytes()]);
    }
}
