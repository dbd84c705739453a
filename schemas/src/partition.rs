//! Which partition a key belongs to: murmur2 as Kafka's own Java producer computes it, over the canonical key text.

/// The partition of `key` among `partitions` (at least 1), as Kafka's default partitioner of Java clients has it.
pub fn of_key(key: &[u8], partitions: i32) -> i32 {
    (murmur2(key) & 0x7fff_ffff) as i32 % partitions
}

/// The 32-bit MurmurHash2 with Kafka's seed.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let mix = |k: u32| {
        let k = k.wrapping_mul(M);
        (k ^ (k >> 24)).wrapping_mul(M)
    };
    let mut chunks = data.chunks_exact(4);
    let mut h = SEED ^ data.len() as u32;
    for chunk in &mut chunks {
        let word = u32::from_le_bytes(chunk.try_into().expect("chunks of four bytes"));
        h = h.wrapping_mul(M) ^ mix(word);
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that Kafka tests its own implementation with (org.apache.kafka.common.utils.UtilsTest).
    #[test]
    fn murmur2_agrees_with_kafka() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, hash, "{text}");
        }
    }
}
