//! Which types hold less of a value than others, so that PostgreSQL rounds or cuts it when it is assigned, and says nothing.
//!
//! Pure. What is refused with an error (a text too long, digits too many) is no matter of this: that is set aside and told. Nor are
//! blanks at a text's end, which fall without an error where it is too long. A domain of the source is not looked through.

const CHAR: u32 = 18;
const INT8: u32 = 20;
const INT4: u32 = 23;
const NAME: u32 = 19;
const TEXT: u32 = 25;
const FLOAT4: u32 = 700;
const FLOAT8: u32 = 701;
const MONEY: u32 = 790;
const BPCHAR: u32 = 1042;
const VARCHAR: u32 = 1043;
const DATE: u32 = 1082;
const TIME: u32 = 1083;
const TIMESTAMP: u32 = 1114;
const TIMESTAMPTZ: u32 = 1184;
const INTERVAL: u32 = 1186;
const TIMETZ: u32 = 1266;
const NUMERIC: u32 = 1700;

/// All fields of an interval.
const ALL: i32 = 0x7fff;
/// Digits behind the point of a second, where none are named.
const DIGITS: i32 = 6;

/// Whether the second type, by OID and modifier, silently holds less than the first. Types of which nothing is known do not.
pub(super) fn is_narrower(source: (u32, i32), target: (u32, i32)) -> bool {
    let (from, to) = (source.1, target.1);
    match (element(source.0), element(target.0)) {
        (NUMERIC, NUMERIC) => to != -1 && (from == -1 || scale(to) < scale(from)),
        (FLOAT4 | FLOAT8, NUMERIC) => to != -1,
        (NUMERIC | FLOAT8 | INT8 | INT4, FLOAT4) | (NUMERIC | INT8, FLOAT8) => true,
        (TEXT | VARCHAR | BPCHAR, NAME) => true,
        (TIMESTAMP | TIMESTAMPTZ, DATE | TIME | TIMETZ) | (TIMETZ, TIME) => true,
        (TIME | TIMETZ, TIME | TIMETZ) | (TIMESTAMP | TIMESTAMPTZ, TIMESTAMP | TIMESTAMPTZ) => {
            digits(to) < digits(from)
        }
        (INTERVAL, INTERVAL) => {
            (fields(to) != ALL && fields(to) != fields(from)) || interval_digits(to) < interval_digits(from)
        }
        (NUMERIC | FLOAT4 | FLOAT8, MONEY) | (TEXT | VARCHAR | BPCHAR, CHAR) => true,
        _ => false,
    }
}

/// The type of an array's elements, whose modifier the array has; other types are what they are.
fn element(oid: u32) -> u32 {
    const OF_ARRAYS: [(u32, u32); 14] = [
        (1003, NAME),
        (1007, INT4),
        (1009, TEXT),
        (1014, BPCHAR),
        (1015, VARCHAR),
        (1016, INT8),
        (1021, FLOAT4),
        (1022, FLOAT8),
        (1115, TIMESTAMP),
        (1182, DATE),
        (1185, TIMESTAMPTZ),
        (1187, INTERVAL),
        (1231, NUMERIC),
        (1270, TIMETZ),
    ];
    OF_ARRAYS.iter().find(|(array, _)| *array == oid).map_or(oid, |(_, element)| *element)
}

/// The fields that an interval is cut to.
fn fields(modifier: i32) -> i32 {
    if modifier == -1 { ALL } else { modifier >> 16 & ALL }
}

fn interval_digits(modifier: i32) -> i32 {
    match modifier & 0xffff {
        0xffff => DIGITS,
        digits => digits,
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
            ((INTERVAL, -1), (INTERVAL, 0x0004_ffff)),
            ((1231, -1), (1231, numeric(12, 2).1)),
            ((1115, -1), (1115, 0)),
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
            ((INTERVAL, -1), (INTERVAL, 0x7fff_0006)),
            ((INTERVAL, 0x7fff_0003), (INTERVAL, 0x7fff_0006)),
            ((NUMERIC, -1), (1231, -1)),          // an array: an error
            ((TIMESTAMPTZ, -1), (TIMESTAMP, -1)), // all sessions stand in one zone
            ((TEXT, -1), (VARCHAR, 14)),
            ((DATE, -1), (TIMESTAMP, 0)),
            ((99_999, -1), (DATE, -1)),
        ] {
            assert!(!is_narrower(source, target), "{source:?} into {target:?}");
        }
    }
}
