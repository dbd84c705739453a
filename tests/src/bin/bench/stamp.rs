//! The time stamp of a row, found in whatever carries the row: PostgreSQL's text of a `timestamptz` in UTC, or ISO 8601.

/// The first stamp in `bytes`: seconds since 1970, and where it ends.
pub(crate) fn find(bytes: &[u8]) -> Option<(f64, usize)> {
    // A stamp has its first hyphen at its fifth character: nothing else in a row has one there and a colon where we look next.
    let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'-').filter_map(|(i, _)| i.checked_sub(4));
    starts.into_iter().find_map(|start| parse(&bytes[start..]).map(|(seconds, length)| (seconds, start + length)))
}

fn parse(text: &[u8]) -> Option<(f64, usize)> {
    let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if !marks.iter().all(|(at, mark)| text.get(*at) == Some(mark)) || !matches!(text.get(10), Some(b' ' | b'T')) {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        let is_number = digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| digits.iter().fold(0, |n, digit| n * 10 + i64::from(digit - b'0')))
    };
    let days = days_since_1970(number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let whole = days * 86_400 + number(11, 13)? * 3_600 + number(14, 16)? * 60 + number(17, 19)?;
    let (mut end, mut fraction, mut unit) = (19, 0.0, 1.0);
    if text.get(end) == Some(&b'.') {
        end += 1;
        while let Some(digit) = text.get(end).filter(|byte| byte.is_ascii_digit()) {
            unit /= 10.0;
            fraction += f64::from(digit - b'0') * unit;
            end += 1;
        }
    }
    // Every connection here runs in UTC: another offset would be another fault than slowness.
    let zone = [b"+00".as_slice(), b"Z".as_slice()].into_iter().find(|zone| text[end..].starts_with(zone))?;
    Some((whole as f64 + fraction, end + zone.len()))
}

/// Days of the Gregorian calendar, counted from March so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_where_they_stand() {
        let check = |text: &str, expected: Option<(f64, usize)>| assert_eq!(find(text.as_bytes()), expected, "{text}");
        check("1970-01-01 00:00:00+00", Some((0.0, 22)));
        check(r#"{"n":-1,"t":"2026-02-28 23:59:59.5+00"}"#, Some((1_772_323_199.5, 37)));
        check("t\0\0\0\u{1b}2024-02-29T12:00:00.250Z", Some((1_709_208_000.25, 29)));
        check("2026-02-28 23:59:59+01", None);
        check("2026-02-28 23:59:59.12", None);
        check("ad8e5-0b-31", None);
    }
}
