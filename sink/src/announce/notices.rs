//! What a batch has to say in Redis: the words of one script call.
//!
//! Pure. Rows of a load say nothing unless asked for, tombstones and most control events never do.

use std::collections::HashMap;

use schemas::event::Control;
use schemas::notice::Notice;
use schemas::{ChangeEvent, Operation, Selection, TableName};
use serde_json::value::RawValue;

use crate::batch::{Batch, Progress};
use crate::config::{Announce, Mode};
use crate::error::Error;
use crate::record::{Kind, Partition, Record};
use crate::relational::{decode, decode_control};

/// The script's arguments for one batch.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(super) words: Vec<Vec<u8>>,
    pub(super) announced: u64,
    pub(super) skipped: u64,
}

/// Writes notices for one partition.
pub(super) struct Writer<'a> {
    pub(super) config: &'a Announce,
    pub(super) tables: &'a Selection,
    pub(super) prefix: &'a str,
    pub(super) partition: &'a Partition,
}

/// The names of one table in Redis.
struct Names {
    channel: String,
    stream: String,
}

impl Writer<'_> {
    pub(super) fn notices(&self, batch: &Batch) -> Result<Notices, Error> {
        let mut notices = Notices::default();
        let mut names: HashMap<TableName, Option<Names>> = HashMap::new();
        for record in batch.records() {
            let commands = match record.kind {
                Kind::Tombstone => Vec::new(),
                Kind::Control => self.of_control(record)?,
                Kind::Row => self.of_row(record, &mut names)?,
            };
            if commands.is_empty() {
                notices.skipped += 1;
            } else {
                notices.announced += 1;
                notices.event(record.offset, record.seq.to_string(), record.position.to_string(), commands);
            }
        }
        // What stands behind the last notice is done too.
        let Progress { last_offset, seq, position, .. } = batch.to;
        notices.event(last_offset, seq.to_string(), position.to_string(), Vec::new());
        Ok(notices)
    }

    fn of_row(
        &self,
        record: Record<'_>,
        names: &mut HashMap<TableName, Option<Names>>,
    ) -> Result<Vec<Vec<Vec<u8>>>, Error> {
        let event = ChangeEvent::decode(record.value.unwrap_or_default());
        let event = event.map_err(|cause| decode(self.partition, record, cause))?;
        if event.operation == Operation::Read && !self.config.snapshot {
            return Ok(Vec::new());
        }
        let key: &RawValue = serde_json::from_slice(record.key.unwrap_or(b"null"))
            .map_err(|cause| decode(self.partition, record, cause))?;
        let table = TableName::new(event.source.schema.as_ref(), event.source.table.as_ref());
        // A topic may hold tables that this group does not take.
        let names =
            names.entry(table.clone()).or_insert_with(|| self.tables.chooses(&table).then(|| self.names(&table)));
        let Some(names) = names else { return Ok(Vec::new()) };
        Ok(self.commands(record, event.operation, &table, key, event.source.ts_ms, names))
    }

    /// A truncate stands in every partition: the first one speaks for all.
    fn of_control(&self, record: Record<'_>) -> Result<Vec<Vec<Vec<u8>>>, Error> {
        let Control::Truncate { tables, .. } = decode_control(self.partition, record)? else { return Ok(Vec::new()) };
        let mut commands = Vec::new();
        for table in tables.iter().filter(|table| *table.topic == *self.partition.topic && self.partition.number == 0) {
            let table = TableName::new(&table.schema, &table.table);
            if !self.tables.chooses(&table) {
                continue;
            }
            commands.extend(self.commands(record, Operation::Truncate, &table, RawValue::NULL, 0, &self.names(&table)));
        }
        Ok(commands)
    }

    fn names(&self, table: &TableName) -> Names {
        Names {
            channel: Announce::name(&self.config.channel, self.prefix, table),
            stream: Announce::name(&self.config.stream, self.prefix, table),
        }
    }

    /// The entry first: of the two it is the one that can fail, and what fails leaves nothing behind.
    fn commands(
        &self,
        record: Record<'_>,
        op: Operation,
        table: &TableName,
        key: &RawValue,
        committed_ms: i64,
        names: &Names,
    ) -> Vec<Vec<Vec<u8>>> {
        let id = format!("{}/{}", self.partition, record.offset);
        let notice = Notice { id: id.into(), op, table, key, position: record.position, committed_ms, parked: false };
        let mut commands = Vec::with_capacity(2);
        if self.config.mode != Mode::Publish {
            let letter = serde_json::to_string(&op).expect("a letter");
            let length = self.config.stream_length_max.to_string();
            let (position, committed) = (notice.position.to_string(), committed_ms.to_string());
            let words = [
                "XADD",
                &names.stream,
                "MAXLEN",
                "~",
                &length,
                "*",
                "id",
                &notice.id,
                "op",
                letter.trim_matches('"'),
                "schema",
                &table.schema,
                "table",
                &table.table,
                "key",
                key.get(),
                "position",
                &position,
                "committed_ms",
                &committed,
            ];
            commands.push(words.into_iter().map(|word| word.as_bytes().to_vec()).collect());
        }
        if self.config.mode != Mode::Stream {
            let json = serde_json::to_vec(&notice).expect("a notice is plain data");
            commands.push(vec![b"PUBLISH".to_vec(), names.channel.as_bytes().to_vec(), json]);
        }
        commands
    }
}

impl Notices {
    fn event(&mut self, offset: i64, seq: String, position: String, commands: Vec<Vec<Vec<u8>>>) {
        let numbers = [offset.to_string(), (offset + 1).to_string(), seq, position, commands.len().to_string()];
        self.words.extend(numbers.map(String::into_bytes));
        for command in commands {
            self.words.push(command.len().to_string().into_bytes());
            self.words.extend(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Backlog, Limits};
    use crate::record::tests::segment;

    const SOURCE: &str = r#""source":{"connector":"tributary","name":"s","db":"s","schema":"shop","table":"t","lsn":1,"txId":1,"ts_ms":7,"snapshot":"false","sequence":"[]"},"ts_ms":1}"#;

    fn words(mode: Mode, snapshot: bool) -> String {
        let row = |op: &str| format!(r#"{{"op":"{op}","after":{{"id":1}},{SOURCE}"#);
        let (read, update) = (row("r"), row("u"));
        let mut backlog = Backlog::new(Progress::NOTHING);
        backlog.push(segment(&[
            (0, 1, "{\"id\":1}", Some(&read)),
            (1, 2, "{\"id\":1}", Some(&update)),
            (2, 3, "{\"id\":1}", None),
        ]));
        let batch = backlog.take(Limits { rows_max: 9, bytes_max: 9_000 }).expect("no gap").expect("three records");
        let config = Announce {
            mode,
            channel: "{prefix}:{table}".into(),
            stream: "{prefix}:{schema}.{table}".into(),
            stream_length_max: 10,
            snapshot,
        };
        let partition = Partition { topic: "p.shop.t".into(), number: 0 };
        let tables = Selection::of_tables(&[TableName::new("shop", "t")]);
        let writer = Writer { config: &config, tables: &tables, prefix: "p", partition: &partition };
        let notices = writer.notices(&batch).expect("valid events");
        notices.words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_change_is_announced_and_what_follows_it_is_done_too() {
        insta::assert_snapshot!(words(Mode::Both, false), @r#"1 2 2 0000000000000002.0000000000000002.00000001 2 20 XADD p:shop.t MAXLEN ~ 10 * id p.shop.t/0/1 op u schema shop table t key {"id":1} position 0000000000000002.0000000000000002.00000001 committed_ms 7 3 PUBLISH p:t {"id":"p.shop.t/0/1","op":"u","schema":"shop","table":"t","key":{"id":1},"position":"0000000000000002.0000000000000002.00000001","committed_ms":7} 2 3 3 0000000000000003.0000000000000003.00000001 0"#);
    }

    #[test]
    fn rows_of_a_load_speak_when_asked() {
        assert_eq!(words(Mode::Publish, true).matches("PUBLISH").count(), 2);
        assert_eq!(words(Mode::Stream, false).matches("XADD").count(), 1);
    }
}
