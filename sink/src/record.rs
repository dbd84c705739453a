//! Records as fetched: the bytes of many in one buffer, so that a record costs no allocation.
//!
//!     consumer ──push──▶ Segment (bytes | entries) ──Arc──▶ worker ──▶ Record<'_>, borrowed
//!
//! Pure: knows nothing of the client that fetched them. A segment gives its bytes back to the fetch budget when it is dropped.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use schemas::fingerprint::Fingerprint;
use schemas::{Position, Seq, header, value};

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition's number.
    pub number: i32,
}

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

/// Bytes that are fetched and not yet done with. Shared by a partition's segments and whoever decides about pausing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<(Mutex<usize>, Condvar)>);

impl Budget {
    pub(crate) fn bytes(&self) -> usize {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until at most `limit` bytes are left, but no longer than `patience`. Whether they are.
    pub(crate) fn wait(&self, limit: usize, patience: Duration) -> bool {
        let bytes = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(bytes, patience, |bytes| *bytes > limit);
        *waited.unwrap_or_else(PoisonError::into_inner).0 <= limit
    }

    fn add(&self, bytes: usize) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
    }

    fn free(&self, bytes: usize) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) -= bytes;
        self.0.1.notify_one();
    }
}

/// Records of one partition, in the order of their offsets.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    charged: usize,
    budget: Budget,
}

#[derive(Debug)]
struct Entry {
    offset: i64,
    seq: Seq,
    position: Position,
    kind: Kind,
    schema: Option<Fingerprint>,
    is_answer: bool,
    key: Option<Range<u32>>,
    value: Option<Range<u32>>,
    /// Headers that are neither position, seq, schema nor control, as members of a JSON object.
    headers: Range<u32>,
}

/// What a record is, told from its headers and its shape alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A row's change.
    Row,
    /// A null value behind a delete, for compaction.
    Tombstone,
    /// No row's change: it stands in every partition of its topic.
    Control,
}

/// One record, borrowed from its segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) offset: i64,
    pub(crate) seq: Seq,
    pub(crate) position: Position,
    pub(crate) kind: Kind,
    pub(crate) schema: Option<Fingerprint>,
    /// Whether it says how a row is that somebody asked for, whatever came before.
    pub(crate) is_answer: bool,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    headers: &'a [u8],
}

impl Record<'_> {
    /// What it adds to a batch, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }

    /// The whole record as one JSON object: key, value and headers, byte for byte. This is what is kept of a parked event.
    pub(crate) fn to_json(self) -> String {
        let mut out = Vec::with_capacity(self.bytes() + 160);
        let part = |bytes: Option<&[u8]>| bytes.map_or(b"null".to_vec(), <[u8]>::to_vec);
        out.extend_from_slice(b"{\"key\":");
        out.extend_from_slice(&part(self.key));
        out.extend_from_slice(b",\"value\":");
        out.extend_from_slice(&part(self.value));
        out.extend_from_slice(
            format!(",\"headers\":{{\"position\":\"{}\",\"seq\":\"{}\"", self.position, self.seq).as_bytes(),
        );
        if let Some(schema) = self.schema {
            out.extend_from_slice(format!(",\"schema\":\"{schema}\"").as_bytes());
        }
        out.extend_from_slice(self.headers);
        out.extend_from_slice(b"}}");
        String::from_utf8_lossy(&out).into_owned()
    }
}

impl Segment {
    pub(crate) fn new(budget: &Budget) -> Segment {
        Segment { bytes: Vec::new(), entries: Vec::new(), charged: 0, budget: budget.clone() }
    }

    /// Copies one record in.
    pub(crate) fn push<'h>(
        &mut self,
        offset: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = (&'h str, Option<&'h [u8]>)>,
    ) -> Result<(), header::Malformed> {
        let (mut position, mut seq, mut schema, mut control, mut is_answer) = (None, None, None, false, false);
        let before = self.bytes.len();
        for (name, text) in headers {
            match name {
                header::POSITION => position = text,
                header::SEQ => seq = text,
                header::SCHEMA => schema = text,
                header::CONTROL => control = true,
                _ => {
                    is_answer |= name == header::ANSWER;
                    self.bytes.push(b',');
                    value::write_string(name.as_bytes(), &mut self.bytes);
                    self.bytes.push(b':');
                    value::write_string(text.unwrap_or_default(), &mut self.bytes);
                }
            }
        }
        let headers = span(before, self.bytes.len());
        let parsed = header::position(position).and_then(|position| Ok((position, header::seq(seq)?)));
        let (position, seq) = match parsed {
            Ok(parsed) => parsed,
            Err(malformed) => {
                self.bytes.truncate(before);
                return Err(malformed);
            }
        };
        let kind = match value {
            None => Kind::Tombstone,
            Some(_) if control => Kind::Control,
            Some(_) => Kind::Row,
        };
        let schema = schema.and_then(|text| std::str::from_utf8(text).ok());
        let schema = schema.and_then(|text| u64::from_str_radix(text, 16).ok()).map(Fingerprint);
        let (key, value) = (self.copy(key), self.copy(value));
        self.entries.push(Entry { offset, seq, position, kind, schema, is_answer, key, value, headers });
        Ok(())
    }

    /// Copies one record of another segment in, with another value if there is one.
    pub(crate) fn copy_from(&mut self, other: &Segment, index: usize, value: Option<&[u8]>) {
        let record = other.record(index);
        let headers = self.copy(Some(record.headers)).unwrap_or_default();
        let (key, value) = (self.copy(record.key), self.copy(value.or(record.value)));
        let Record { offset, seq, position, kind, schema, is_answer, .. } = record;
        self.entries.push(Entry { offset, seq, position, kind, schema, is_answer, key, value, headers });
    }

    fn copy(&mut self, bytes: Option<&[u8]>) -> Option<Range<u32>> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes?);
        Some(span(start, self.bytes.len()))
    }

    /// Charges the budget with what stands here; a sealed segment does not grow any more.
    pub(crate) fn seal(mut self) -> Segment {
        self.charged = self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>();
        self.budget.add(self.charged);
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn record(&self, index: usize) -> Record<'_> {
        let entry = &self.entries[index];
        let at = |range: &Range<u32>| &self.bytes[range.start as usize..range.end as usize];
        Record {
            offset: entry.offset,
            seq: entry.seq,
            position: entry.position,
            kind: entry.kind,
            schema: entry.schema,
            is_answer: entry.is_answer,
            key: entry.key.as_ref().map(at),
            value: entry.value.as_ref().map(at),
            headers: at(&entry.headers),
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.budget.free(self.charged);
    }
}

/// A range of a segment, which the consumer seals long before 4 GiB.
fn span(start: usize, end: usize) -> Range<u32> {
    let at = |place: usize| u32::try_from(place).expect("a segment stays below 4 GiB");
    at(start)..at(end)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A segment of `(offset, seq, key, value)`; a value that begins with `!` is a control event.
    pub(crate) fn segment(records: &[(i64, u64, &str, Option<&str>)]) -> Segment {
        let mut segment = Segment::default();
        for (offset, seq, key, value) in records {
            let position = format!("{:016X}.{:016X}.{:08X}", seq, seq, 1);
            let control = value.and_then(|value| value.strip_prefix('!'));
            let number = seq.to_string();
            let mut headers = vec![("position", Some(position.as_bytes())), ("seq", Some(number.as_bytes()))];
            if control.is_some() {
                headers.push(("control", Some(b"schema")));
            }
            let key = (!key.is_empty()).then_some(key.as_bytes());
            let value = control.or(*value).map(str::as_bytes);
            segment.push(*offset, key, value, headers.into_iter()).expect("headers as they should be");
        }
        segment
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_whole_as_json() {
        let mut segment = Segment::default();
        let position = "0000000000000A10.00000000000009F8.00000001";
        let headers = [
            ("position", Some(position.as_bytes())),
            ("seq", Some(b"7".as_slice())),
            ("schema", Some(b"00000000000000ff".as_slice())),
            ("answer", Some(b"l\"1".as_slice())),
        ];
        segment.push(3, Some(b"{\"id\":1}"), Some(b"{\"op\":\"c\"}"), headers.into_iter()).expect("a good record");
        let record = segment.record(0);
        assert_eq!((record.offset, record.seq, record.kind), (3, Seq(7), Kind::Row));
        assert_eq!(
            record.to_json(),
            format!(
                r#"{{"key":{{"id":1}},"value":{{"op":"c"}},"headers":{{"position":"{position}","seq":"7","schema":"00000000000000ff","answer":"l\"1"}}}}"#
            )
        );
    }

    #[test]
    fn a_record_without_its_headers_is_refused_and_leaves_nothing_behind() {
        let mut segment = Segment::default();
        let refused = segment.push(0, None, Some(b"x"), [("trace", Some(b"1".as_slice()))].into_iter());
        assert_eq!(refused.expect_err("no position").name, "position");
        assert_eq!((segment.len(), segment.bytes()), (0, 0));
    }

    #[test]
    fn the_budget_holds_what_is_alive() {
        let budget = Budget::default();
        let mut one = Segment::new(&budget);
        let headers = [
            ("position", Some(b"0000000000000A10.00000000000009F8.00000001".as_slice())),
            ("seq", Some(b"1".as_slice())),
        ];
        one.push(0, None, Some(&[b'x'; 1000]), headers.into_iter()).expect("a good record");
        let one = one.seal();
        assert!(budget.bytes() >= 1000);
        drop(one);
        assert_eq!(budget.bytes(), 0);
    }
}
