//! The streams in Redis against the topics: each change is announced once, and those of a key in their order.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;

use super::topic::Records;
use crate::table::Table;

/// How many entries are fetched at once.
const ENTRIES_MAX: usize = 10_000;

/// The stream of a table under the default template.
pub fn stream_name(prefix: &str, table: &Table) -> String {
    format!("{prefix}:{}.{}:stream", table.name.schema, table.name.table)
}

/// By key: the positions of its changes, in order.
type Announced = BTreeMap<String, Vec<String>>;

/// Whether the stream holds the topic's changes (loaded rows are none), each once, in order per key.
pub async fn compare(connection: &mut MultiplexedConnection, stream: &str, records: &Records) -> Result<(), String> {
    let mut expected = Announced::new();
    for record in records.rows() {
        if !record.event()?.is_loaded() {
            let key = record.key.clone().unwrap_or_default();
            expected.entry(key).or_default().push(record.position()?.to_owned());
        }
    }
    let found = read(connection, stream).await?;
    if expected == found {
        return Ok(());
    }
    let count = |announced: &Announced| announced.values().map(Vec::len).sum::<usize>();
    let keys = expected.keys().chain(found.keys()).filter(|key| expected.get(*key) != found.get(*key));
    let first =
        keys.min().map(|key| format!("key {key}:\n  topic  {:?}\n  stream {:?}", expected.get(key), found.get(key)));
    let (in_topic, in_stream) = (count(&expected), count(&found));
    Err(format!("{in_topic} changes in the topic, {in_stream} in the stream; {}", first.unwrap_or_default()))
}

async fn read(connection: &mut MultiplexedConnection, stream: &str) -> Result<Announced, String> {
    let mut found = Announced::new();
    let mut from = "-".to_owned();
    loop {
        let mut command = redis::cmd("XRANGE");
        command.arg(stream).arg(&from).arg("+").arg("COUNT").arg(ENTRIES_MAX);
        let reply: StreamRangeReply = command.query_async(connection).await.map_err(|cause| cause.to_string())?;
        let Some(last) = reply.ids.last() else { return Ok(found) };
        from = format!("({}", last.id);
        for entry in &reply.ids {
            let field = |name: &str| {
                let value: Option<String> = entry.get(name);
                value.ok_or_else(|| format!("the entry {} has no field {name:?}", entry.id))
            };
            found.entry(field("key")?).or_default().push(field("position")?);
        }
    }
}
