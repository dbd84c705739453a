//! The promises of this crate while the only broker is away.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::servers::Kafka;
use kafka::admin::{Admin, NewTopic};
use kafka::producer::{Publisher, Record};
use kafka::topic::{Isolation, read_all};
use kafka::{Config, Error};
use service::config::Document;

const NEVER: &dyn Fn() -> bool = &|| false;

/// Collects the log of the whole process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> Log {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
        log
    }

    /// The lines that hold `text`.
    fn lines(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().expect("nobody panics while writing");
        String::from_utf8_lossy(&bytes).lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics while writing").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn after(duration: Duration) -> impl Fn() -> bool {
    let deadline = Instant::now() + duration;
    move || Instant::now() > deadline
}

fn send(publisher: &mut Publisher, value: usize) -> Result<(), Error> {
    let value = value.to_string();
    let record = Record { topic: "t", partition: 0, key: None, value: Some(value.as_bytes()), headers: &[] };
    publisher.send(&record, NEVER)
}

fn seen(config: &Config) -> usize {
    let mut next = 0;
    let each = |record: &kafka::topic::Record<'_>| {
        assert_eq!(record.value(), Some(next.to_string().as_bytes()));
        next += 1;
        Ok::<_, Error>(())
    };
    read_all(config, "t", Isolation::ReadCommitted, NEVER, each).expect("the topic can be read");
    next
}

/// A broker of its own with the topic `t`.
async fn broker() -> (Kafka, Config, Admin) {
    let broker = Kafka::start(1).await.expect("Kafka starts");
    let text = format!("[kafka]\nbrokers = 'kafka://{}'", broker.addresses());
    let document = Document::parse(&text, std::iter::empty()).expect("the text is TOML");
    let config = Config::read(&mut document.root().section("kafka"));
    let admin = Admin::connect(&config).expect("the settings are good");
    let new = NewTopic { name: "t", partitions: 1, replication: 1, settings: vec![] };
    admin.create(&[new]).await.expect("the topic can be made");
    (broker, config, admin)
}

/// One story, for each step needs the broker in the state that the last one left.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_outlives_its_broker() {
    let log = Log::start();
    let (mut broker, config, admin) = broker().await;
    let broker_address = broker.addresses();
    let mut publisher = Publisher::connect(&config, "source").expect("the settings are good");
    publisher.init(NEVER).expect("the broker answers");

    // Killed with a transaction open: records before and after are committed once it is back.
    publisher.begin().expect("initialised");
    (0..100).for_each(|value| send(&mut publisher, value).expect("there is room"));
    broker.kill9().await.expect("it can be killed");
    (100..200).for_each(|value| send(&mut publisher, value).expect("there is room"));
    let committing = tokio::task::spawn_blocking(move || {
        publisher.commit(NEVER).expect("the broker comes back in time");
        (publisher, Instant::now())
    });
    // Long enough for several attempts to connect, each of which could be said.
    tokio::time::sleep(Duration::from_secs(5)).await;
    broker.restart().await.expect("Kafka starts again");
    let answers = Instant::now();
    let (mut publisher, committed) = committing.await.expect("the commit does not panic");
    println!("committed {:?} after the broker answered", committed.saturating_duration_since(answers));
    assert_eq!(seen(&config), 200);
    let losses = || log.lines(&format!("trying again until it answers broker=\"{broker_address}\""));
    let lost = losses();
    assert!(lost.len() == 1 && lost[0].contains("WARN"), "{lost:?}");
    harness::until::until("the return is said", Duration::from_secs(20), async || {
        match log.lines("the Kafka broker answers again").len() {
            1 => Ok(()),
            count => Err(format!("{count} lines")),
        }
    })
    .await
    .expect("once");

    // Away for good: whoever waits can be told to stop.
    broker.kill9().await.expect("it can be killed");
    let waited = Instant::now();
    publisher.begin().expect("the last one is committed");
    send(&mut publisher, 200).expect("there is room");
    let stopped = publisher.commit(&after(Duration::from_secs(2))).expect_err("nobody answers");
    assert!(stopped.is_stop() && waited.elapsed() < Duration::from_secs(8), "{stopped:?} after {:?}", waited.elapsed());
    drop(publisher);

    let mut publisher = Publisher::connect(&config, "source").expect("nothing is sent yet");
    let stopped = publisher.init(&after(Duration::from_secs(2))).expect_err("nobody answers");
    assert!(stopped.is_stop(), "{stopped:?}");
    let refused = admin.topics(&["t"]).await.expect_err("nobody answers");
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
    let refused = read_all(&config, "t", Isolation::ReadCommitted, NEVER, |_| Ok(())).expect_err("nobody answers");
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
    assert_eq!(losses().len(), 2, "once more, whoever missed it");

    // A start with the broker away waits, and goes on by itself.
    let mut publisher = Publisher::connect(&config, "source").expect("nothing is sent yet");
    let starting = tokio::task::spawn_blocking(move || {
        publisher.init(NEVER).expect("the broker comes back");
        publisher
    });
    broker.restart().await.expect("Kafka starts again");
    let publisher = starting.await.expect("init does not panic");
    assert_eq!(seen(&config), 200, "the abandoned record is not visible");
    publish(&config, publisher, 200);
    assert_eq!(seen(&config), 201);
}

/// Publishes one record as the source does: fenced, it starts over. A broker that was just starting has been seen to let a
/// producer's own repeated request fence it.
fn publish(config: &Config, mut publisher: Publisher, value: usize) {
    for _ in 0..5 {
        let published =
            publisher.begin().and_then(|()| send(&mut publisher, value)).and_then(|()| publisher.commit(NEVER));
        match published {
            Ok(()) => return,
            Err(Error::Fenced { .. }) => {
                publisher = Publisher::connect(config, "source").expect("the settings are good");
                publisher.init(NEVER).expect("the broker answers");
            }
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
    }
    panic!("fenced five times, by nobody");
}

/// 64 MiB wait, more does not: the sender does, and can be told to stop.
#[test]
fn a_queue_that_nobody_empties_makes_its_sender_wait() {
    let document = Document::parse("[kafka]\nbrokers = 'kafka://127.0.0.1:1'", std::iter::empty()).expect("TOML");
    let config = Config::read(&mut document.root().section("kafka"));
    let mut plain = kafka::producer::Plain::connect(&config).expect("the settings are good");
    let value = vec![b'x'; 500_000];
    let record = Record { topic: "t", partition: 0, key: None, value: Some(&value), headers: &[] };
    let stop = after(Duration::from_secs(1));
    let taken = (0..1_000).take_while(|&tag| plain.send(tag, &record, &stop).is_ok()).count();
    let bytes = taken * value.len();
    assert!((50_000_000..=kafka::producer::QUEUE_BYTES_MAX).contains(&bytes), "{bytes} bytes were taken");
}

/// As where librdkafka has lost a leader: connected, and nothing is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_stands_still_is_given_up() {
    let (mut broker, config, _) = broker().await;
    let mut publisher = Publisher::connect(&config, "stands").expect("the settings are good");
    publisher.init(NEVER).expect("the broker answers");
    publisher.begin().expect("initialised");
    broker.broker(0).freeze();
    send(&mut publisher, 7).expect("there is room");
    let committing = tokio::task::spawn_blocking(move || (publisher.commit(NEVER), publisher));
    let (given_up, mut publisher) = committing.await.expect("the commit does not panic");
    let given_up = given_up.expect_err("nothing is taken");
    assert!(matches!(given_up, Error::Standstill { records: 1, .. }) && given_up.is_transient(), "{given_up}");
    publisher.begin().expect_err("only a new producer can go on");
    broker.broker(0).thaw();
    let mut publisher = Publisher::connect(&config, "stands").expect("the settings are good");
    publisher.init(NEVER).expect("the broker answers");
    publish(&config, publisher, 0);
    assert_eq!(seen(&config), 1, "what was given up is not visible");
}
