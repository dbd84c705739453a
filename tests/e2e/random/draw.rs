//! Random values as SQL expressions, drawn where types have their edges. Each type's function gives any value of it.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// A value of a type as an SQL expression.
pub type Draw = fn(&mut ChaCha8Rng) -> String;

/// The types that others are made of: name, and how values are drawn.
pub const BASE: &[(&str, Draw)] = &[
    ("boolean", |random| random.random::<bool>().to_string()),
    ("smallint", |random| integer::<16>(random)),
    ("integer", |random| integer::<32>(random)),
    ("bigint", |random| integer::<64>(random)),
    ("oid", |random| quoted(&random.random::<u32>().to_string())),
    ("numeric", numeric),
    ("double precision", double),
    ("real", single),
    ("money", money),
    ("date", date),
    ("timestamp", moment),
    ("timestamptz", |random| format!("({}) AT TIME ZONE 'UTC'", moment(random))),
    ("time", |random| quoted(&time(random))),
    ("timetz", timetz),
    ("interval", interval),
    ("text", |random| literal(&text(random, 24))),
    ("varchar(12)", |random| literal(&text(random, 12))),
    ("char(8)", |random| literal(&text(random, 8))),
    ("\"char\"", |random| literal(one_of(random, &["a", "\\", "\"", "{", ",", " ", ""]))),
    ("name", |random| literal(&text(random, 10))),
    ("bytea", |random| format!("'\\x{}'::bytea", hex(random))),
    ("bit(5)", |random| quoted(&bits(random, 5))),
    ("varbit", |random| {
        let length = random.random_range(0..70);
        quoted(&bits(random, length))
    }),
    ("uuid", |random| quoted(&format!("{:032x}", random.random::<u128>()))),
    ("json", |random| literal(&json(random, 3))),
    ("jsonb", |random| literal(&json(random, 3))),
    ("tsvector", tsvector),
    ("inet", inet),
    ("cidr", |random| format!("network({}::inet)", inet(random))),
    ("macaddr", |random| quoted(&format!("{:012x}", random.random::<u64>() >> 16))),
    ("macaddr8", |random| quoted(&format!("{:016x}", random.random::<u64>()))),
    ("point", point),
    ("lseg", |random| format!("lseg({}, {})", point(random), point(random))),
    ("box", |random| format!("box({}, {})", point(random), point(random))),
    ("path", |random| quoted(&points(random, &[("(", ")"), ("[", "]")]))),
    ("polygon", |random| quoted(&points(random, &[("(", ")")]))),
    ("circle", |random| format!("circle({}, {})", point(random), random.random_range(0..1000))),
    ("pg_lsn", |random| quoted(&format!("{:X}/{:X}", random.random::<u32>(), random.random::<u32>()))),
    ("xid8", |random| quoted(&random.random::<u64>().to_string())),
    ("tid", |random| quoted(&format!("({},{})", random.random::<u32>(), random.random::<u16>()))),
    ("random.mood", |random| literal(one_of(random, MOODS))),
];

/// The labels of `random.mood`.
pub const MOODS: &[&str] = &["sad", "it's ok", "a b", "c,d", "{e}", "\"f\"", "\\g", "NULL", "Größe"];

/// Ranges, by type, of values drawn as `BASE` draws them.
pub const RANGES: &[(&str, &str, &str)] = &[
    ("int4range", "int4multirange", "integer"),
    ("int8range", "int8multirange", "bigint"),
    ("numrange", "nummultirange", "numeric"),
    ("daterange", "datemultirange", "date"),
    ("tsrange", "tsmultirange", "timestamp"),
    ("tstzrange", "tstzmultirange", "timestamptz"),
    ("random.textrange", "random.textmultirange", "text"),
];

/// How values of a base type are drawn.
pub fn base(name: &str) -> Draw {
    BASE.iter().find(|(known, _)| *known == name).expect("a base type").1
}

/// An array over what `draw` gives: empty, of one dimension with NULLs, or of two.
pub fn array(random: &mut ChaCha8Rng, of: &str, draw: Draw) -> String {
    let element = |random: &mut ChaCha8Rng| match random.random_range(0..6) {
        0 => "NULL".to_owned(),
        _ => format!("({})::{of}", draw(random)),
    };
    let list = |random: &mut ChaCha8Rng, length: usize| {
        let elements: Vec<String> = (0..length).map(|_| element(random)).collect();
        format!("ARRAY[{}]::{of}[]", elements.join(", "))
    };
    let (length, height) = (random.random_range(1..4), random.random_range(1..4));
    match random.random_range(0..6) {
        0 => format!("'{{}}'::{of}[]"),
        1 => {
            let rows: Vec<String> = (0..height).map(|_| list(random, length)).collect();
            format!("ARRAY[{}]", rows.join(", "))
        }
        _ => list(random, length),
    }
}

/// A range: ends in order, open, closed or missing.
pub fn range(random: &mut ChaCha8Rng, (name, _, of): (&str, &str, &str)) -> String {
    let end = |random: &mut ChaCha8Rng| format!("({})::{of}", base(of)(random));
    let (a, b) = (end(random), end(random));
    match random.random_range(0..6) {
        0 => format!("'empty'::{name}"),
        1 => format!("{name}({a}, NULL, '[]')"),
        2 => format!("{name}(NULL, {a}, '()')"),
        _ => {
            let order = |which: &str| match of {
                // In the order of the range's own type.
                "text" => format!("{which}({a} COLLATE \"C\", {b} COLLATE \"C\")"),
                _ => format!("{which}({a}, {b})"),
            };
            // An upper end that is the type's last cannot be made exclusive.
            format!("{name}({}, {}, '[)')", order("least"), order("greatest"))
        }
    }
}

/// A multirange of none to three ranges.
pub fn multirange(random: &mut ChaCha8Rng, of: (&str, &str, &str)) -> String {
    let ranges: Vec<String> = (0..random.random_range(0..4)).map(|_| range(random, of)).collect();
    format!("{}({})", of.1, ranges.join(", "))
}

/// Pairs of an hstore.
pub fn hstore(random: &mut ChaCha8Rng) -> String {
    let pairs: Vec<String> = (0..random.random_range(0..4))
        .map(|_| {
            let (key, value) = (literal(&text(random, 8)), literal(&text(random, 8)));
            if random.random_range(0..4) == 0 {
                format!("hstore({key}, NULL)")
            } else {
                format!("hstore({key}, {value})")
            }
        })
        .collect();
    if pairs.is_empty() { "''::hstore".to_owned() } else { pairs.join(" || ") }
}

/// Letters where the text forms of arrays, composites and ranges need quotes or escapes, and where COPY and JSON do.
pub fn text(random: &mut ChaCha8Rng, length_max: usize) -> String {
    const LETTERS: &[char] = &[
        'a', 'B', '0', ' ', ' ', '"', '\\', '\'', ',', ';', ':', '{', '}', '(', ')', '[', ']', '=', '>', '\t', '\n',
        '\r', '\u{8}', '\u{b}', '\u{c}', '\u{1}', '\u{1f}', '\u{7f}', '\u{85}', 'é', '表', '\u{2028}', '\u{feff}',
        '🌊',
    ];
    match random.random_range(0..12) {
        0 => one_of(random, &["NULL", "null", "\\N", "\\.", "empty", "''", "t", "-0"]).to_owned(),
        1 => (0..random.random_range(0..=length_max)).map(|_| any_letter(random)).collect(),
        _ => (0..random.random_range(0..=length_max)).map(|_| LETTERS[random.random_range(0..LETTERS.len())]).collect(),
    }
}

fn any_letter(random: &mut ChaCha8Rng) -> char {
    loop {
        match char::from_u32(random.random_range(1..0x11_0000)) {
            Some(letter) => return letter,
            None => continue,
        }
    }
}

/// A text as SQL takes it.
pub fn literal(text: &str) -> String {
    format!("'{}'::text", text.replace('\'', "''"))
}

fn quoted(text: &str) -> String {
    format!("'{text}'")
}

fn one_of<'a>(random: &mut ChaCha8Rng, from: &[&'a str]) -> &'a str {
    from[random.random_range(0..from.len())]
}

fn integer<const BITS: u32>(random: &mut ChaCha8Rng) -> String {
    let wide: i64 = random.random();
    let number = match random.random_range(0..6) {
        0 => i64::MIN >> (64 - BITS),
        1 => i64::MAX >> (64 - BITS),
        2 => random.random_range(-3..3),
        _ => wide >> (64 - BITS),
    };
    quoted(&number.to_string())
}

fn digits(random: &mut ChaCha8Rng, length_max: usize) -> String {
    (0..random.random_range(1..=length_max)).map(|_| char::from(b'0' + random.random_range(0..10_u8))).collect()
}

fn number(random: &mut ChaCha8Rng) -> String {
    let sign = one_of(random, &["", "-"]);
    let whole = digits(random, 30);
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    match random.random_range(0..4) {
        0 => format!("{sign}{whole}"),
        1 => format!("{sign}0.{}", digits(random, 40)),
        2 => format!("{sign}{whole}.{}00", digits(random, 5)),
        _ => format!("{sign}{whole}e{}", random.random_range(-60..60)),
    }
}

fn numeric(random: &mut ChaCha8Rng) -> String {
    match random.random_range(0..10) {
        0 => quoted(one_of(random, &["NaN", "Infinity", "-Infinity", "0", "-0.000"])),
        _ => quoted(&number(random)),
    }
}

fn double(random: &mut ChaCha8Rng) -> String {
    match random.random_range(0..6) {
        0 => quoted(one_of(random, &["NaN", "Infinity", "-Infinity", "-0", "0", "5e-324", "1e22", "1e15"])),
        1 => quoted(&format!("{}", f64::from(random.random::<i32>()) / 100.0)),
        _ => {
            let value = f64::from_bits(random.random());
            if value.is_finite() { quoted(&format!("{value:e}")) } else { quoted("NaN") }
        }
    }
}

fn single(random: &mut ChaCha8Rng) -> String {
    let value = f32::from_bits(random.random());
    match random.random_range(0..6) {
        0 => quoted(one_of(random, &["NaN", "Infinity", "-Infinity", "-0", "0", "1e-45", "1e6", "1e7"])),
        _ if value.is_finite() => quoted(&format!("{value:e}")),
        _ => quoted("-0"),
    }
}

fn money(random: &mut ChaCha8Rng) -> String {
    let cents: i64 = random.random::<i64>() >> random.random_range(8..60);
    format!("({cents}::numeric / 100)::money")
}

fn date(random: &mut ChaCha8Rng) -> String {
    match random.random_range(0..10) {
        0 => format!(
            "'{}'::date",
            one_of(random, &["infinity", "-infinity", "4713-01-01 BC", "0001-12-31 BC", "0001-01-01"])
        ),
        1..4 => format!("'2000-01-01'::date + {}", random.random_range(-2_451_500..2_145_031_000)),
        _ => format!("'2000-01-01'::date + {}", random.random_range(-800_000..100_000)),
    }
}

fn moment(random: &mut ChaCha8Rng) -> String {
    match random.random_range(0..10) {
        0 => format!(
            "'{}'::timestamp",
            one_of(random, &["infinity", "-infinity", "0044-03-15 12:00 BC", "1999-12-31 23:59:59.999999"])
        ),
        1 => format!("'2000-01-01'::timestamp + {} * interval '1 day'", random.random_range(-2_451_500..106_741_000)),
        _ => {
            let (days, micros) = (random.random_range(-800_000..100_000), random.random_range(0..86_400_000_000_u64));
            format!("'2000-01-01'::timestamp + interval '{days} days {micros} microseconds'")
        }
    }
}

fn time(random: &mut ChaCha8Rng) -> String {
    let (hour, minute, second) = (random.random_range(0..24), random.random_range(0..60), random.random_range(0..60));
    match random.random_range(0..8) {
        0 => "24:00:00".to_owned(),
        1 => format!("{hour:02}:{minute:02}:{second:02}"),
        _ => format!("{hour:02}:{minute:02}:{second:02}.{:06}", random.random_range(0..1_000_000)),
    }
}

fn timetz(random: &mut ChaCha8Rng) -> String {
    let (hour, minute, second) = (random.random_range(0..16), random.random_range(0..60), random.random_range(0..60));
    let zone = match random.random_range(0..3) {
        0 => format!("{hour:02}"),
        1 => format!("{hour:02}:{minute:02}"),
        _ => format!("{hour:02}:{minute:02}:{second:02}"),
    };
    quoted(&format!("{}{}{zone}", time(random), one_of(random, &["+", "-"])))
}

fn interval(random: &mut ChaCha8Rng) -> String {
    let months: i32 = random.random::<i32>() >> random.random_range(0..32);
    let days: i32 = random.random::<i32>() >> random.random_range(0..32);
    let micros: i64 = random.random::<i64>() >> random.random_range(4..64);
    quoted(&format!("{months} months {days} days {micros} microseconds"))
}

fn hex(random: &mut ChaCha8Rng) -> String {
    (0..random.random_range(0..24)).map(|_| format!("{:02x}", random.random::<u8>())).collect()
}

fn bits(random: &mut ChaCha8Rng, length: usize) -> String {
    (0..length).map(|_| if random.random() { '1' } else { '0' }).collect()
}

/// JSON that both json and jsonb take.
fn json(random: &mut ChaCha8Rng, depth: u32) -> String {
    let space = one_of(random, &["", " ", "\n\t"]);
    match random.random_range(0..if depth == 0 { 5 } else { 8 }) {
        0 => one_of(random, &["null", "true", "false"]).to_owned(),
        1 | 2 => number(random),
        3 | 4 => json_text(random),
        5 => {
            let items: Vec<String> = (0..random.random_range(0..4)).map(|_| json(random, depth - 1)).collect();
            format!("[{space}{}]", items.join(&format!("{space},")))
        }
        _ => {
            let member = |random: &mut ChaCha8Rng| format!("{}{space}:{}", json_text(random), json(random, depth - 1));
            let members: Vec<String> = (0..random.random_range(0..4)).map(|_| member(random)).collect();
            format!("{{{space}{}}}", members.join(&format!(",{space}")))
        }
    }
}

fn json_text(random: &mut ChaCha8Rng) -> String {
    serde_json::to_string(&text(random, 8)).expect("a text is JSON")
}

fn tsvector(random: &mut ChaCha8Rng) -> String {
    let words: Vec<String> =
        (0..random.random_range(0..4)).map(|_| literal(&format!("w{}", text(random, 6)))).collect();
    match random.random_range(0..3) {
        0 => format!("setweight(to_tsvector('simple', {}), 'B')", literal(&text(random, 24))),
        _ => format!("array_to_tsvector(ARRAY[{}]::text[])", words.join(", ")),
    }
}

fn inet(random: &mut ChaCha8Rng) -> String {
    if random.random() {
        let [a, b, c, d] = random.random::<u32>().to_be_bytes();
        return quoted(&format!("{a}.{b}.{c}.{d}/{}", random.random_range(0..=32)));
    }
    let address = std::net::Ipv6Addr::from_bits(random.random::<u128>() >> random.random_range(0..128));
    quoted(&format!("{address}/{}", random.random_range(0..=128)))
}

fn coordinate(random: &mut ChaCha8Rng) -> String {
    match random.random_range(0..4) {
        0 => "-0".to_owned(),
        1 => random.random_range(-9..9).to_string(),
        _ => format!("{:e}", f64::from(random.random::<f32>()) * 1e4),
    }
}

fn point(random: &mut ChaCha8Rng) -> String {
    format!("point '({},{})'", coordinate(random), coordinate(random))
}

fn points(random: &mut ChaCha8Rng, around: &[(&str, &str)]) -> String {
    let count = random.random_range(1..5);
    let points: Vec<String> = (0..count).map(|_| format!("({},{})", coordinate(random), coordinate(random))).collect();
    let (open, close) = around[random.random_range(0..around.len())];
    format!("{open}{}{close}", points.join(","))
}
