//! A text array in PostgreSQL's binary form, written value by value: one buffer per column and batch, nothing per row.

/// The OID of `text`.
const TEXT: u32 = 25;
/// Dimensions, flags, element type, length, lower bound.
const HEADER: usize = 20;

/// A `text[]` of one dimension, ready to be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextArray {
    bytes: Vec<u8>,
    len: u32,
    nulls: bool,
}

impl TextArray {
    pub(crate) fn new() -> TextArray {
        TextArray { bytes: vec![0; HEADER], len: 0, nulls: false }
    }

    pub(crate) fn push(&mut self, value: Option<&str>) {
        self.len += 1;
        match value {
            None => {
                self.nulls = true;
                self.bytes.extend_from_slice(&(-1i32).to_be_bytes());
            }
            Some(text) => {
                // A value as large as the protocol's limit was refused by Kafka long before.
                let length = i32::try_from(text.len()).expect("a value below 2 GiB");
                self.bytes.extend_from_slice(&length.to_be_bytes());
                self.bytes.extend_from_slice(text.as_bytes());
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the array as the server reads it.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let words = [1, u32::from(self.nulls), TEXT, self.len, 1];
        out.reserve(self.bytes.len());
        out.extend(words.into_iter().flat_map(u32::to_be_bytes));
        out.extend_from_slice(&self.bytes[HEADER..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_stands_as_the_server_reads_it() {
        let mut array = TextArray::new();
        array.push(Some("ab"));
        array.push(None);
        let mut out = Vec::new();
        array.write(&mut out);
        let expected =
            [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 25, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, b'a', b'b', 255, 255, 255, 255];
        assert_eq!(out, expected);
    }
}
