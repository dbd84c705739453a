//! Which transactions a snapshot of PostgreSQL sees.
//!
//! Pure. The stream names transactions by 32 bits, snapshots by 64: an xid is widened to the number nearest to the
//! snapshot's horizon, which is right while fewer than two thousand million transactions lie between the two.

use std::str::FromStr;

/// `xmin:xmax:xip,…` as `pg_current_snapshot()` prints it. On a primary only: a standby's list is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    xmax: u64,
    in_progress: Vec<u64>,
}

impl Snapshot {
    /// Whether what the transaction did is visible.
    pub fn sees(&self, xid: u32) -> bool {
        let distance = xid.wrapping_sub(self.xmax as u32) as i32;
        let wide = self.xmax.wrapping_add_signed(i64::from(distance));
        wide < self.xmax && self.in_progress.binary_search(&wide).is_err()
    }

    /// Whether everything that `other` sees is visible here too.
    pub fn covers(&self, other: &Snapshot) -> bool {
        let seen_by_other = |xid: &u64| *xid < other.xmax && other.in_progress.binary_search(xid).is_err();
        // Transactions from our horizon to the other's must be none that it sees: they are exactly its list there.
        let beyond = other.xmax.saturating_sub(self.xmax);
        let listed = other.in_progress.iter().filter(|xid| **xid >= self.xmax).count() as u64;
        beyond == listed && !self.in_progress.iter().any(seen_by_other)
    }
}

/// The text was no snapshot.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no snapshot as pg_current_snapshot() prints it")]
pub struct ParseError(String);

impl FromStr for Snapshot {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parse = || {
            let mut parts = text.splitn(3, ':');
            let (xmin, xmax, list) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?);
            let mut in_progress = list
                .split(',')
                .filter(|xid| !xid.is_empty())
                .map(|xid| xid.parse().ok())
                .collect::<Option<Vec<u64>>>()?;
            in_progress.sort_unstable();
            in_progress.dedup();
            // The snapshot of a new slot can have its xmin beyond its xmax. The server asks xmin first: what lies below is seen.
            let sound = in_progress.iter().all(|xid| (xmin..xmax).contains(xid));
            sound.then_some(Snapshot { xmax: xmax.max(xmin), in_progress })
        };
        parse().ok_or_else(|| ParseError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().expect("a snapshot")
    }

    #[test]
    fn a_snapshot_sees_what_was_committed_before_it() {
        let s = snapshot("100:110:102,105");
        assert!(s.sees(99) && s.sees(101) && s.sees(109));
        assert!(!s.sees(102) && !s.sees(105) && !s.sees(110) && !s.sees(500));
    }

    #[test]
    fn xids_are_widened_across_the_epoch() {
        let s = snapshot("4294967290:4294967300:4294967295");
        assert!(s.sees(4_294_967_294) && s.sees(3));
        assert!(!s.sees(4_294_967_295) && !s.sees(4));
    }

    #[test]
    fn a_slot_s_snapshot_sees_all_below_its_xmin() {
        let s: Snapshot = "24373:24363:".parse().expect("as 15 printed it");
        assert!(s.sees(24_372) && !s.sees(24_373));
        let plain: Snapshot = "24370:24373:24370".parse().expect("a snapshot");
        assert!(!plain.covers(&s), "24370 is not visible to it");
    }

    #[test]
    fn what_no_server_prints_is_no_snapshot() {
        for text in ["", "1", "1:2", "1:2:x", "1:2:9", "5:9:4", "1:99999999999999999999:", "-1:2:", "1:2:3:4"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text:?} was taken for one");
        }
    }

    proptest! {
        #[test]
        fn covering_is_seeing_all_that_the_other_sees(a in snapshots(), b in snapshots()) {
            let all = (90..130).all(|xid| !b.sees(xid) || a.sees(xid));
            prop_assert_eq!(a.covers(&b), all);
        }
    }

    fn snapshots() -> impl Strategy<Value = Snapshot> {
        (100_u64..120, proptest::collection::btree_set(95_u64..120, 0..6))
            .prop_map(|(xmax, xip)| Snapshot { xmax, in_progress: xip.into_iter().filter(|xid| *xid < xmax).collect() })
    }
}
