//! Values drawn at random, as SQL literals: ordinary ones, and those that others got wrong.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

/// A text as a literal.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// One of several literals.
pub(super) fn one_of(random: &mut ChaCha8Rng, literals: &[&str]) -> String {
    (*literals.choose(random).expect("there is something to choose from")).to_owned()
}

/// A number as text.
pub(super) fn number(random: &mut ChaCha8Rng, below: u32) -> u32 {
    random.random_range(0..below)
}

/// A short text, sometimes NULL or full of what needs an escape somewhere.
pub(super) fn short_text(random: &mut ChaCha8Rng) -> String {
    const TEXTS: [&str; 8] = ["", " ", "it's", "a\tb\nc\\d", "\"quoted\"", "ünïcödé 🦀", "NULL", "\\N"];
    match number(random, 10) {
        0 => "NULL".to_owned(),
        1..3 => literal(TEXTS.choose(random).expect("there are texts")),
        _ => literal(&format!("text {}", number(random, 1_000_000))),
    }
}

/// A text so long and so random that it is stored out of line.
pub(super) fn long_text(random: &mut ChaCha8Rng) -> String {
    if number(random, 8) == 0 {
        return "NULL".to_owned();
    }
    let length = 2_500 + number(random, 3_000) as usize;
    literal(&(0..length).map(|_| char::from(b'a' + (number(random, 26) as u8))).collect::<String>())
}

/// A numeric with two places.
pub(super) fn amount(random: &mut ChaCha8Rng) -> String {
    format!("{}.{:02}", number(random, 100_000), number(random, 100))
}

pub(super) fn boolean(random: &mut ChaCha8Rng) -> String {
    one_of(random, &["true", "false", "NULL"])
}

pub(super) fn date(random: &mut ChaCha8Rng) -> String {
    one_of(random, &["'2024-02-29'", "'infinity'", "'0044-03-15 BC'", "'5874897-12-31'", "NULL"])
}

pub(super) fn moment(random: &mut ChaCha8Rng) -> String {
    match number(random, 6) {
        0 => one_of(
            random,
            &["'infinity'", "'-infinity'", "'0044-03-15 12:00:00+00 BC'", "'294276-12-31 23:59:59.999999+00'"],
        ),
        _ => format!(
            "timestamptz 'epoch' + {} * interval '1 microsecond'",
            random.random_range(0..2_000_000_000_000_000_u64)
        ),
    }
}

pub(super) fn double(random: &mut ChaCha8Rng) -> String {
    match number(random, 4) {
        0 => one_of(random, &["'-0'", "'NaN'", "'Infinity'", "'5e-324'", "1e20", "0.1 + 0.2", "NULL"]),
        _ => format!("{:?}", random.random::<f64>() * 1e6),
    }
}

pub(super) fn numeric(random: &mut ChaCha8Rng) -> String {
    one_of(
        random,
        &["1.10", "1.1", "0.00000000000000000001", "'NaN'", "12345678901234567890.123456789", "-0.0", "NULL"],
    )
}

pub(super) fn json(random: &mut ChaCha8Rng) -> String {
    let n = number(random, 1_000_000);
    match number(random, 6) {
        0 => one_of(random, &["'null'", "'[]'", "NULL", "'1e2'", r#"'{"a": "\"\\\n ü", "b": [1, {"c": null}]}'"#]),
        _ => format!(r#"'{{"n": {n}, "big": 12345678901234567890.10, "list": [1, 2.0, "{n}"]}}'"#),
    }
}

pub(super) fn texts(random: &mut ChaCha8Rng) -> String {
    let n = number(random, 1_000);
    let plain = format!("'{{tag{n},other}}'");
    one_of(
        random,
        &[&plain, "'{}'", "NULL", r#"'{"a,b","NULL",NULL,"","q\"x"}'"#, "'{{a,NULL},{c,d}}'", "'[0:1]={x,y}'"],
    )
}

pub(super) fn bytes(random: &mut ChaCha8Rng) -> String {
    let hex = format!("'\\x{:08x}'", random.random::<u32>());
    one_of(random, &[&hex, "'\\x'", "'\\x00ff5c27'", "NULL"])
}
