//! Which types hold less of a value than others, so that PostgreSQL rounds or cuts it when it is assigned, and says nothing.
//!
//! Pure. What is refused with an error (a text too long, digits too many) is no matter of this: that is set aside and told.

const INT8: u32 = 20;
const INT4: u32 = 23;
const NAME: u32 = 19;
const TEXT: u32 = 25;
const FLOAT4: u32 = 700;
const FLOAT8: u32 = 701;
const BPCHAR: u32 = 1042;
const VARCHAR: u32 = 1043;
const DATE: u32 = 1082;
const TIME: u32 = 1083;
const TIMESTAMP: u32 = 1114;
const TIMESTAMPTZ: u32 = 1184;
const INTERVAL: u32 = 1186;
const TIMETZ: u32 = 1266;
const NUMERIC: u32 = 1700;

/// Digits behind the point of a second, where none are named.
const DIGITS: i32 = 6;

/// Whether the second type, by OID and modifier, silently holds less than the first. Types of which nothing is known do not.
pub(super) fn is_narrower(source: (u32, i32), target: (u32, i32)) -> bool {
    let (from, to) = (source.1, target.1);
    match (source.0, target.0) {
        (NUMERIC, NUMERIC) => to != -1 && (from == -1 || scale(to) < scale(from)),
        (FLOAT4 | FLOAT8, NUMERIC) => to != -1,
        (NUMERIC | FLOAT8 | INT8 | INT4, FLOAT4) | (NUMERIC | INT8, FLOAT8) => true,
        (TEXT | VARCHAR | BPCHAR, NAME) => true,
        (TIMESTAMP | TIMESTAMPTZ, DATE | TIME | TIMETZ) | (TIMETZ, TIME) => true,
        (TIME | TIMETZ, TIME | TIMETZ) | (TIMESTAMP | TIMESTAMPTZ, TIMESTAMP | TIMESTAMPTZ) => {
            digits(to) < digits(from)
        }
        (INTERVAL, INTERVAL) => to != -1 && to != from,
        _ => false,
    }
}

/// Digits behind the point of a numeric, which may be fewer than none.
fn scale(modifier: i32) -> i32 {
    (((modifier - 4) & 0x7ff) ^ 1024) - 1024
}

fn digits(modifier: i32) -> i32 {
    if modifier == -1 { DIGITS } else { modifier }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numeric(precision, scale)`
    fn numeric(precision: i32, scale: i32) -> (u32, i32) {
        (NUMERIC, (precision << 16 | scale & 0x7ff) + 4)
    }

    #[test]
    fn what_would_be_rounded_is_known_and_what_is_refused_is_not_its_matter() {
        for (source, target) in [
            (numeric(12, 4), numeric(12, 2)),
            ((NUMERIC, -1), numeric(30, 10)),
            (numeric(5, 0), numeric(5, -2)),
            ((FLOAT8, -1), (FLOAT4, -1)),
            ((INT8, -1), (FLOAT8, -1)),
            ((TIMESTAMP, -1), (TIMESTAMP, 3)),
            ((TIMESTAMPTZ, 6), (TIMESTAMP, 0)),
            ((TIMESTAMP, 0), (DATE, -1)),
            ((TEXT, -1), (NAME, -1)),
            ((INTERVAL, -1), (INTERVAL, 0x7fff_0003)),
        ] {
            assert!(is_narrower(source, target), "{source:?} into {target:?}");
            assert!(!is_narrower(target, target) && !is_narrower(source, source));
        }
        for (source, target) in [
            (numeric(12, 2), numeric(14, 4)),
            (numeric(12, 2), (NUMERIC, -1)),
            (numeric(12, 2), numeric(6, 2)), // too large: an error
            ((INT4, -1), (INT8, -1)),
            ((INT4, -1), (FLOAT8, -1)),
            ((TIMESTAMP, 3), (TIMESTAMP, -1)),
            ((TIMESTAMPTZ, -1), (TIMESTAMP, -1)), // all sessions stand in one zone
            ((TEXT, -1), (VARCHAR, 14)),
            ((DATE, -1), (TIMESTAMP, 0)),
            ((99_999, -1), (DATE, -1)),
        ] {
            assert!(!is_narrower(source, target), "{source:?} into {target:?}");
        }
    }
}
