//! How fast the transactional publisher is: records of 300 bytes with a key and three headers, committed by size.
//!
//!     cargo run --release -p kafka --example throughput -- kafka://127.0.0.1:9092 TOPIC 1000000
//!
//! The topic must exist with 4 partitions.

use std::time::{Duration, Instant};

use kafka::Config;
use kafka::producer::{Publisher, Record};
use service::config::Document;

const TRANSACTION_BYTES: usize = 16 * 1024 * 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, brokers, topic, count] = &arguments[..] else { return Err("give BROKERS TOPIC COUNT".into()) };
    let document = Document::parse(&format!("[kafka]\nbrokers = '{brokers}'"), std::env::vars())?;
    let config = Config::read(&mut document.root().section("kafka"));
    document.finish()?;
    let count: usize = count.parse()?;
    let never = || false;
    let mut publisher = Publisher::connect(&config, "throughput")?;
    publisher.init(&never)?;

    let row = r#"{"op":"u","before":{"id":42},"after":{"id":42,"name":"a name","note":"some text of a row"},"source":{"lsn":24023128}}"#;
    let value: String = row.chars().cycle().take(300).collect();
    let (mut sending, mut committing, mut commits) = (Duration::ZERO, Duration::ZERO, 0);
    let began = Instant::now();
    publisher.begin()?;
    let mut bytes = 0;
    let mut mark = Instant::now();
    for number in 0..count {
        let key = format!("{{\"id\":{number}}}");
        let position = format!("{number:016x}.{number:016x}.00000000");
        let headers: [(&str, &[u8]); 3] =
            [("position", position.as_bytes()), ("seq", key.as_bytes()), ("schema", b"0123456789abcdef")];
        let partition = i32::try_from(number % 4)?;
        let record =
            Record { topic, partition, key: Some(key.as_bytes()), value: Some(value.as_bytes()), headers: &headers };
        publisher.send(&record, &never)?;
        bytes += record.size();
        if bytes >= TRANSACTION_BYTES || number + 1 == count {
            sending += mark.elapsed();
            mark = Instant::now();
            publisher.commit(&never)?;
            committing += mark.elapsed();
            commits += 1;
            publisher.begin()?;
            bytes = 0;
            mark = Instant::now();
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{count} records in {seconds:.2} s: {:.0} a second; sending {:.2} µs a record, {commits} commits, {committing:.2?} in them",
        count as f64 / seconds,
        sending.as_secs_f64() * 1e6 / count as f64,
    );
    Ok(())
}
