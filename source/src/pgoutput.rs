//! The messages of logical replication's pgoutput plugin, protocol 1, borrowed from the bytes that carried them.
//!
//! Pure: bytes in, messages out. What a message means is for others to know.

use schemas::Lsn;
use schemas::write::Cell;

/// One message of the stream.
#[derive(Debug, PartialEq)]
pub enum Message<'a> {
    /// A transaction begins; it has already committed.
    Begin {
        /// Start of its commit record.
        commit: Lsn,
        /// Commit time, microseconds since 2000.
        time: i64,
        /// The lower 32 bits of its xid.
        xid: u32,
    },
    /// The transaction is complete.
    Commit {
        /// Start of its commit record.
        commit: Lsn,
        /// End of its commit record: what may be confirmed.
        end: Lsn,
    },
    /// The transaction was replicated to this server from elsewhere.
    Origin,
    /// A relation as it is from here on.
    Relation(Relation),
    /// A type that is not built in. Its OID says enough.
    Type,
    /// A row was inserted.
    Insert {
        /// The relation.
        oid: u32,
        /// The row.
        new: Vec<Cell<'a>>,
    },
    /// A row was updated.
    Update {
        /// The relation.
        oid: u32,
        /// What the stream tells of the row before.
        old: Old<'a>,
        /// The row.
        new: Vec<Cell<'a>>,
    },
    /// A row was deleted.
    Delete {
        /// The relation.
        oid: u32,
        /// What the stream tells of the row.
        old: Old<'a>,
    },
    /// Relations were emptied.
    Truncate {
        /// All of one command.
        oids: Vec<u32>,
        /// CASCADE was said.
        cascade: bool,
        /// RESTART IDENTITY was said.
        restart_identity: bool,
    },
    /// A logical message.
    Logical {
        /// Whether it belongs to the transaction that is open.
        transactional: bool,
        /// The start of the record *behind* it.
        lsn: Lsn,
        /// Who it is for.
        prefix: &'a str,
        /// What it says.
        content: &'a [u8],
    },
}

/// The row before an update or delete.
#[derive(Debug, PartialEq)]
pub enum Old<'a> {
    /// Nothing: the identity's columns did not change.
    None,
    /// The identity's columns; the others are null here whatever they were.
    Key(Vec<Cell<'a>>),
    /// All columns, under identity FULL.
    Row(Vec<Cell<'a>>),
}

impl Relation {
    /// Whether it says itself which columns name a row: under FULL all are flagged, and without an identity none is.
    pub fn names_key(&self) -> bool {
        self.identity != 'f' && self.columns.iter().any(|column| column.identity)
    }
}

impl<'a> Old<'a> {
    /// Its cells, if it has any.
    pub fn cells(&self) -> Option<&Vec<Cell<'a>>> {
        match self {
            Old::None => None,
            Old::Key(cells) | Old::Row(cells) => Some(cells),
        }
    }
}

/// A relation as the stream describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    /// Its OID.
    pub oid: u32,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub table: String,
    /// The replica identity in PostgreSQL's letter.
    pub identity: char,
    /// The published columns.
    pub columns: Vec<Column>,
}

/// A column as the stream describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Whether it belongs to the replica identity. Under FULL all do.
    pub identity: bool,
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_oid: u32,
    /// Its type's modifier; -1 for none.
    pub modifier: i32,
}

/// The bytes are no message of protocol 1.
#[derive(Debug, thiserror::Error)]
#[error("message {kind:?} of the replication stream breaks off or breaks its form at byte {at}")]
pub struct Malformed {
    /// The message's first byte.
    pub kind: char,
    /// Where in the message.
    pub at: usize,
}

/// Decodes one message. Nothing may stand behind it: what is longer than its form was not understood.
pub fn decode(payload: &[u8]) -> Result<Message<'_>, Malformed> {
    let mut reader = Reader { payload, at: 0 };
    let message = reader.message().filter(|_| reader.at == payload.len());
    message.ok_or_else(|| Malformed { kind: payload.first().map_or('\0', |b| *b as char), at: reader.at })
}

struct Reader<'a> {
    payload: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn message(&mut self) -> Option<Message<'a>> {
        Some(match self.u8()? {
            b'B' => Message::Begin { commit: self.lsn()?, time: self.i64()?, xid: self.u32()? },
            b'C' => {
                self.u8()?;
                let (commit, end, _time) = (self.lsn()?, self.lsn()?, self.i64()?);
                Message::Commit { commit, end }
            }
            b'O' => {
                self.lsn()?;
                self.text()?;
                Message::Origin
            }
            b'R' => Message::Relation(self.relation()?),
            b'Y' => {
                self.u32()?;
                self.text()?;
                self.text()?;
                Message::Type
            }
            b'I' => Message::Insert { oid: self.u32()?, new: self.new_tuple()? },
            b'U' => {
                let oid = self.u32()?;
                let old = if self.peek()? == b'N' { Old::None } else { self.old_tuple()? };
                Message::Update { oid, old, new: self.new_tuple()? }
            }
            b'D' => Message::Delete { oid: self.u32()?, old: self.old_tuple()? },
            b'T' => {
                let (count, flags) = (self.u32()?, self.u8()?);
                let oids = (0..count).map(|_| self.u32()).collect::<Option<_>>()?;
                Message::Truncate { oids, cascade: flags & 1 != 0, restart_identity: flags & 2 != 0 }
            }
            b'M' => {
                let (transactional, lsn, prefix) = (self.u8()? & 1 != 0, self.lsn()?, self.text()?);
                let length = self.u32()? as usize;
                Message::Logical { transactional, lsn, prefix, content: self.take(length)? }
            }
            _ => return None,
        })
    }

    fn relation(&mut self) -> Option<Relation> {
        let oid = self.u32()?;
        let schema = match self.text()? {
            // The stream leaves out the one schema that it takes for granted.
            "" => "pg_catalog",
            schema => schema,
        };
        let (schema, table) = (schema.to_owned(), self.text()?.to_owned());
        let (identity, count) = (self.u8()? as char, self.u16()?);
        let columns = (0..count).map(|_| self.column()).collect::<Option<_>>()?;
        Some(Relation { oid, schema, table, identity, columns })
    }

    fn column(&mut self) -> Option<Column> {
        let (flags, name) = (self.u8()?, self.text()?.to_owned());
        Some(Column { identity: flags & 1 != 0, name, type_oid: self.u32()?, modifier: self.u32()? as i32 })
    }

    fn new_tuple(&mut self) -> Option<Vec<Cell<'a>>> {
        if self.u8()? != b'N' {
            return None;
        }
        self.cells()
    }

    fn old_tuple(&mut self) -> Option<Old<'a>> {
        match self.u8()? {
            b'K' => self.cells().map(Old::Key),
            b'O' => self.cells().map(Old::Row),
            _ => None,
        }
    }

    fn cells(&mut self) -> Option<Vec<Cell<'a>>> {
        let count = usize::from(self.u16()?);
        // A cell takes a byte at least: a count that the message cannot hold is refused before it takes memory.
        if count > self.payload.len() - self.at {
            return None;
        }
        let mut cells = Vec::with_capacity(count);
        for _ in 0..count {
            cells.push(match self.u8()? {
                b'n' => Cell::Null,
                b'u' => Cell::Unchanged,
                b't' => {
                    let length = self.u32()? as usize;
                    Cell::Text(self.take(length)?)
                }
                _ => return None,
            });
        }
        Some(cells)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let bytes = self.payload.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes)
    }

    fn peek(&self) -> Option<u8> {
        self.payload.get(self.at).copied()
    }

    fn text(&mut self) -> Option<&'a str> {
        let rest = self.payload.get(self.at..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    fn lsn(&mut self) -> Option<Lsn> {
        self.array().map(u64::from_be_bytes).map(Lsn)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N).map(|bytes| bytes.try_into().expect("exactly as many bytes as were taken"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    fn update() -> Vec<u8> {
        let (key, new) = (b"K\0\x02t\0\0\0\x011n", b"N\0\x02t\0\0\0\x012u");
        bytes(&[b"U\0\0\0\x07", key, new])
    }

    #[test]
    fn each_message_is_understood() {
        let lsn = |n: u64| n.to_be_bytes();
        let begin = bytes(&[b"B", &lsn(100), &5_i64.to_be_bytes(), &771_u32.to_be_bytes()]);
        assert_eq!(decode(&begin).expect("begin"), Message::Begin { commit: Lsn(100), time: 5, xid: 771 });
        let commit = bytes(&[b"C\0", &lsn(100), &lsn(148), &5_i64.to_be_bytes()]);
        assert_eq!(decode(&commit).expect("commit"), Message::Commit { commit: Lsn(100), end: Lsn(148) });
        let old = Old::Key(vec![Cell::Text(b"1"), Cell::Null]);
        let new = vec![Cell::Text(b"2"), Cell::Unchanged];
        assert_eq!(decode(&update()).expect("update"), Message::Update { oid: 7, old, new });
        let truncate = b"T\0\0\0\x02\x03\0\0\0\x07\0\0\0\x08";
        let expected = Message::Truncate { oids: vec![7, 8], cascade: true, restart_identity: true };
        assert_eq!(decode(truncate).expect("truncate"), expected);
        let message = bytes(&[b"M\x01", &lsn(64), b"tributary/s\0", b"\0\0\0\x02hi"]);
        let expected = Message::Logical { transactional: true, lsn: Lsn(64), prefix: "tributary/s", content: b"hi" };
        assert_eq!(decode(&message).expect("message"), expected);
        let relation = bytes(&[b"R\0\0\0\x07public\0users\0d\0\x01\x01id\0\0\0\0\x14\xff\xff\xff\xff"]);
        let column = Column { identity: true, name: "id".into(), type_oid: 20, modifier: -1 };
        let (schema, table) = ("public".into(), "users".into());
        let expected = Relation { oid: 7, schema, table, identity: 'd', columns: vec![column] };
        assert_eq!(decode(&relation).expect("relation"), Message::Relation(expected));
    }

    #[test]
    fn a_message_that_breaks_off_anywhere_is_refused() {
        let whole = update();
        for cut in 0..whole.len() {
            assert!(decode(&whole[..cut]).is_err(), "{cut} bytes of {}", whole.len());
        }
        let longer = bytes(&[&whole, b"n"]);
        assert_eq!(decode(&longer).expect_err("a byte too many").at, whole.len());
    }

    #[test]
    fn a_count_that_the_message_cannot_hold_is_refused_before_any_cell_is_read() {
        let refused = decode(b"I\0\0\0\x07N\xff\xffnnn").expect_err("three cells of 65535");
        assert_eq!(refused.at, 8, "right behind the count");
    }

    #[test]
    fn counts_and_lengths_that_the_message_cannot_hold_are_refused() {
        let huge = b"\xff\xff\xff\xff";
        for message in [
            bytes(&[b"I\0\0\0\x07N\xff\xff"]),
            bytes(&[b"I\0\0\0\x07N\0\x01t", huge, b"1"]),
            bytes(&[b"I\0\0\0\x07N\0\x01t\x7f\xff\xff\xff1"]),
            bytes(&[b"T", huge, b"\0\0\0\0\x07"]),
            bytes(&[b"M\x01\0\0\0\0\0\0\0\x40p\0", huge, b"hi"]),
            bytes(&[b"R\0\0\0\x07public\0users\0d\xff\xff\x01id\0\0\0\0\x14\xff\xff\xff\xff"]),
            bytes(&[b"R\0\0\0\x07public\0users without an end"]),
            bytes(&[b"I\0\0\0\x07N\0\x01b\0\0\0\x011"]),
        ] {
            assert!(decode(&message).is_err(), "{message:?}");
        }
    }
}
