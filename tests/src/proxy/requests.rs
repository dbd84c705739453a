//! Where requests of Kafka's protocol end in a stream of bytes, and of which kind each is: four bytes of length, two of kind.

/// The requests of one connection, as its bytes pass.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The first six bytes of the request under way, as far as they have passed.
    head: Vec<u8>,
    /// How many bytes of it are still to come, behind its head.
    left: usize,
}

impl Requests {
    /// More bytes pass: the kind of the last request that ended in them.
    pub(super) fn passed(&mut self, mut bytes: &[u8]) -> Option<i16> {
        const HEAD: usize = 6;
        let mut ended = None;
        while !bytes.is_empty() {
            if self.head.len() < HEAD {
                let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
                self.head.extend_from_slice(head);
                bytes = rest;
                if self.head.len() < HEAD {
                    break;
                }
                let length = u32::from_be_bytes([self.head[0], self.head[1], self.head[2], self.head[3]]) as usize;
                // The two bytes of kind are part of the length.
                self.left = length.saturating_sub(2);
            }
            let passing = bytes.len().min(self.left);
            bytes = &bytes[passing..];
            self.left -= passing;
            if self.left == 0 {
                ended = Some(i16::from_be_bytes([self.head[4], self.head[5]]));
                self.head.clear();
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_however_their_bytes_are_cut() {
        let two = [0, 0, 0, 4, 0, 3, 9, 9, 0, 0, 0, 3, 0, 26, 9];
        for cut in 0..two.len() {
            let mut requests = Requests::default();
            let found = [requests.passed(&two[..cut]), requests.passed(&two[cut..])];
            let expected = match cut {
                0..8 => [None, Some(26)],
                _ => [Some(3), Some(26)],
            };
            assert_eq!(found, expected, "cut at {cut}");
        }
    }
}
