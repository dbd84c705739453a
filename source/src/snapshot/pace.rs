//! How large the next chunk is, and when it may begin.
//!
//! Pure: times are handed in. A chunk is published whole at its marker, and the stream waits meanwhile: so its size is what
//! the stream's latency is held by, and where nobody else writes it may be larger. It is also what bounds the age of a
//! transaction, and memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Reading a chunk should not take longer.
const READ: Duration = Duration::from_millis(500);
/// Nor should others' changes wait longer while it is published.
const PUBLISH_BESIDE: Duration = Duration::from_millis(5);
/// While there are none: what the first of them may have to wait.
const SEND_ALONE: Duration = Duration::from_millis(60);
/// When the stream has brought others' changes, more are expected for so long.
const BESIDE: Duration = Duration::from_secs(10);
/// What a table begins with.
const ROWS_FIRST: usize = 1_000;
/// A chunk that is short is not worth its marker and its commit, however slow the machine is.
const ROWS_LEAST: usize = 200;
/// From one chunk to the next it grows at most so many times.
const GROWTH: usize = 4;

/// What is known of one table.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// What the last chunk asked for.
    asked: usize,
    bytes_each: f64,
    read_each: f64,
    /// Until it is handed to Kafka's client, and until it is committed.
    send_each: f64,
    publish_each: f64,
    /// No more than this is read within a statement's time.
    bearable: Option<usize>,
}

/// What the last chunks of each table suggest for the next.
#[derive(Debug)]
pub struct Pace {
    bytes_max: usize,
    rows_max: usize,
    tables: HashMap<u32, Known>,
    /// Others' changes are expected until then.
    beside_until: Option<Instant>,
}

impl Pace {
    /// No chunk is to be larger than this.
    pub fn new(bytes_max: usize, rows_max: usize) -> Pace {
        Pace { bytes_max, rows_max: rows_max.max(1), tables: HashMap::new(), beside_until: None }
    }

    /// Whether nobody waits while a chunk is published, as far as can be told.
    pub fn is_alone(&self, now: Instant) -> bool {
        self.beside_until.is_none_or(|until| until <= now)
    }

    /// How many rows the next chunk of a table asks for.
    pub fn rows(&self, oid: u32, now: Instant) -> usize {
        let Some(known) = self.tables.get(&oid) else { return ROWS_FIRST.min(self.rows_max) };
        let within = |bound: f64, each: f64| if each > 0.0 { (bound / each).round() as usize } else { usize::MAX };
        // Alone, a broker that is slow for a moment is no reason for chunks that are small for long.
        let (publish, each) = match self.is_alone(now) {
            true => (SEND_ALONE, known.send_each),
            false => (PUBLISH_BESIDE, known.publish_each),
        };
        let timely = within(READ.as_secs_f64(), known.read_each).min(within(publish.as_secs_f64(), each));
        let fitting = within(self.bytes_max as f64, known.bytes_each);
        let grown = known.asked.saturating_mul(GROWTH).max(ROWS_FIRST);
        let bearable = known.bearable.unwrap_or(usize::MAX);
        timely.max(ROWS_LEAST).min(fitting).min(grown).min(bearable).clamp(1, self.rows_max)
    }

    /// So many rows were asked for, and so many looked at, from which so many bytes came in so much time.
    pub fn read(&mut self, oid: u32, asked: usize, rows: usize, bytes: usize, took: Duration) {
        let known = self.tables.entry(oid).or_default();
        known.asked = asked;
        if rows > 0 {
            known.bytes_each = bytes as f64 / rows as f64;
            known.read_each = smooth(known.read_each, took.as_secs_f64() / rows as f64);
            // What was borne once with room to spare may be asked for again.
            known.bearable = known.bearable.map(|bearable| bearable.max(asked.saturating_mul(2)));
        }
    }

    /// The stream has brought others' changes.
    pub fn met_others(&mut self, now: Instant) {
        self.beside_until = Some(now + BESIDE);
    }

    /// What came of so many rows was handed to Kafka's client in so much time, and published in so much.
    pub fn published(&mut self, oid: u32, rows: usize, sent_in: Duration, took: Duration) {
        if rows > 0 {
            let known = self.tables.entry(oid).or_default();
            known.send_each = smooth(known.send_each, sent_in.as_secs_f64() / rows as f64);
            known.publish_each = smooth(known.publish_each, took.as_secs_f64() / rows as f64);
        }
    }

    /// So many rows could not be read within a statement's time. `false` if it was a single one: then less cannot be asked.
    pub fn unbearable(&mut self, oid: u32, asked: usize) -> bool {
        self.tables.entry(oid).or_default().bearable = Some((asked / 2).max(1));
        asked > 1
    }
}

/// One chunk that had to wait for something else should not make the next ones small.
fn smooth(before: f64, now: f64) -> f64 {
    if before > 0.0 { (before + now) / 2.0 } else { now }
}

/// Rows a second, over all readers.
#[derive(Debug)]
pub struct Rate {
    /// 0: as many as come.
    rows_per_second_max: u64,
    free_at: Option<Instant>,
}

impl Rate {
    /// No more than this; 0: no limit.
    pub fn new(rows_per_second_max: u64) -> Rate {
        Rate { rows_per_second_max, free_at: None }
    }

    /// So many rows were read.
    pub fn took(&mut self, rows: u64, now: Instant) {
        if self.rows_per_second_max > 0 {
            let pause = Duration::from_secs_f64(rows as f64 / self.rows_per_second_max as f64);
            self.free_at = Some(self.free_at.map_or(now, |free| free.max(now)) + pause);
        }
    }

    /// When the next chunk may begin, if not at once.
    pub fn free_at(&self, now: Instant) -> Option<Instant> {
        self.free_at.filter(|free| *free > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TABLE: u32 = 7;

    /// A table of rows with so many bytes, each read and published in so many microseconds: what its chunks come to while
    /// others write.
    fn settled(mut pace: Pace, bytes: usize, read_us: u64, publish_us: u64) -> usize {
        let now = Instant::now();
        pace.met_others(now);
        for _ in 0..40 {
            let rows = pace.rows(TABLE, now);
            let each = |us: u64| Duration::from_micros(us * rows as u64);
            pace.read(TABLE, rows, rows, rows * bytes, each(read_us));
            pace.published(TABLE, rows, each(0), each(publish_us));
        }
        pace.rows(TABLE, now)
    }

    #[test]
    fn chunks_are_as_large_as_their_narrowest_bound() {
        let pace = || Pace::new(1 << 20, 20_000);
        assert_eq!(settled(pace(), 10, 1, 0), 20_000, "rows");
        assert_eq!(settled(pace(), 1 << 10, 1, 0), 1 << 10, "bytes");
        assert_eq!(settled(pace(), 10, 50, 0), 10_000, "the time of reading");
        assert_eq!(settled(pace(), 10, 1, 2), 2_500, "the time of publishing");
        assert_eq!(settled(pace(), 10, 1, 1_000), ROWS_LEAST, "no chunk is very short");
        assert_eq!(settled(pace(), 1 << 21, 1, 1), 1, "but for rows that are large");
    }

    #[test]
    fn a_chunk_may_take_longer_while_nobody_waits() {
        let now = Instant::now();
        let mut pace = Pace::new(1 << 20, 20_000);
        pace.read(TABLE, 20_000, 20_000, 20_000, MS);
        pace.published(TABLE, 1_000, 10 * MS, 20 * MS);
        assert_eq!(pace.rows(TABLE, now), 6_000);
        pace.met_others(now);
        assert_eq!(pace.rows(TABLE, now), 250);
        assert_eq!(pace.rows(TABLE, now + BESIDE), 6_000, "they have ceased");
    }

    #[test]
    fn a_chunk_grows_step_by_step() {
        let now = Instant::now();
        let mut pace = Pace::new(1 << 30, 1_000_000);
        assert_eq!(pace.rows(TABLE, now), ROWS_FIRST);
        pace.read(TABLE, ROWS_FIRST, ROWS_FIRST, 1, MS);
        assert_eq!(pace.rows(TABLE, now), ROWS_FIRST * GROWTH);
        assert_eq!(pace.rows(TABLE + 1, now), ROWS_FIRST, "each table by itself");
    }

    #[test]
    fn what_cannot_be_borne_is_halved_down_to_a_single_row() {
        let now = Instant::now();
        let mut pace = Pace::new(1 << 20, 20_000);
        let mut asked = pace.rows(TABLE, now);
        let mut halvings = 0;
        while pace.unbearable(TABLE, asked) {
            halvings += 1;
            assert_eq!(pace.rows(TABLE, now), asked / 2);
            asked = pace.rows(TABLE, now);
        }
        assert_eq!((asked, halvings), (1, 9));
        pace.read(TABLE, 1, 1, 10, MS);
        assert_eq!(pace.rows(TABLE, now), 2, "and grows again when it is");
    }

    #[test]
    fn rows_a_second_are_kept_over_all_readers() {
        let begun = Instant::now();
        let mut rate = Rate::new(1_000);
        assert_eq!(rate.free_at(begun), None);
        rate.took(500, begun);
        rate.took(500, begun + 100 * MS);
        assert_eq!(rate.free_at(begun + 100 * MS), Some(begun + 1_000 * MS));
        assert_eq!(rate.free_at(begun + 1_000 * MS), None);
        let mut unlimited = Rate::new(0);
        unlimited.took(1_000_000, begun);
        assert_eq!(unlimited.free_at(begun), None);
    }
}
