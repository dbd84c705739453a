//! `tributary snapshot status`: where each table stands, and how far and how fast its loads are.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::SnapshotStatus;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::loads::{Stage, TableLoad};
use crate::output::{print, print_json, table};
use crate::slot::span;
use crate::status::{Tables, tables};

/// Between two looks while watching.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a bar is.
const BAR_WIDTH: u64 = 24;

/// Where loads were before, by load and table.
type Before = BTreeMap<(String, String), (Instant, u64)>;

/// Shows it once, or again and again until no load is under way.
pub(crate) async fn run(configuration: &Configuration, arguments: SnapshotStatus) -> Result<Outcome, Failure> {
    let is_terminal = std::io::stdout().is_terminal() && !arguments.form.json;
    let (mut before, mut lines) = (Before::new(), 0);
    loop {
        let look = tables(configuration).await;
        if arguments.form.json {
            print_json(&look);
        } else {
            let text = text(&look, &mut before, is_terminal);
            if is_terminal && lines > 0 {
                back(lines);
            }
            lines = text.lines().count();
            print(&text);
        }
        let is_over = look.tables.iter().all(|table| table.loads.is_empty());
        if !arguments.watch || is_over || !look.unknown.is_empty() {
            return Ok(match &look {
                Tables { unknown, .. } if !unknown.is_empty() => Outcome::Unknown,
                Tables { tables, .. } if tables.iter().any(|table| table.load == Stage::Failed) => Outcome::Finding,
                _ => Outcome::Fine,
            });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What comes next takes the place of the last `lines` lines. A reader that went away is no error.
fn back(lines: usize) {
    let mut out = std::io::stdout().lock();
    let _gone = write!(out, "\x1b[{lines}A\x1b[J");
}

fn text(look: &Tables, before: &mut Before, has_bars: bool) -> String {
    let now = Instant::now();
    let mut rows = Vec::new();
    for one in &look.tables {
        let reason = one.reason.clone().unwrap_or_default();
        let row = |load: &str, how: String| vec![one.table.clone(), one.load.words().to_owned(), load.to_owned(), how];
        if one.loads.is_empty() {
            rows.push(row("", reason.clone()));
        }
        for load in &one.loads {
            let speed = speed(before, (&load.load, &one.table), load.rows, now);
            // What hinders the load itself is among its words.
            let reason = one.reason.clone().filter(|reason| load.fault() != Some(reason));
            let parts = [bar(load).filter(|_| has_bars), Some(load.words()), left(load, speed), reason];
            rows.push(row(&load.load, parts.into_iter().flatten().collect::<Vec<_>>().join("  ")));
        }
    }
    let mut text = table(&["table", "state", "load", "progress"], rows);
    if let Some(source) = &look.source {
        text += &format!("\nsource: {source}\n");
    }
    look.unknown.iter().for_each(|unknown| text += &format!("\ncould not be asked: {unknown}\n"));
    text
}

/// Rows a second since the load was first looked at.
fn speed(before: &mut Before, place: (&str, &str), rows: u64, now: Instant) -> Option<f64> {
    let (since, first) = *before.entry((place.0.to_owned(), place.1.to_owned())).or_insert((now, rows));
    let seconds = now.duration_since(since).as_secs_f64();
    (seconds > 0.0).then(|| rows.saturating_sub(first) as f64 / seconds)
}

/// How fast it is, and how long it takes if it goes on so.
fn left(load: &TableLoad, speed: Option<f64>) -> Option<String> {
    let speed = speed.filter(|_| !load.paused)?;
    let left = load.rows_estimated.saturating_sub(load.rows);
    let time =
        (speed > 0.0 && left > 0).then(|| format!(", {} left", span(Duration::from_secs_f64(left as f64 / speed))));
    Some(format!("{speed:.0} rows/s{}", time.unwrap_or_default()))
}

fn bar(load: &TableLoad) -> Option<String> {
    let full = load.percent()? * BAR_WIDTH / 100;
    let part = |length: u64, sign: &str| sign.repeat(usize::try_from(length).unwrap_or_default());
    Some(format!("[{}{}]", part(full, "#"), part(BAR_WIDTH - full, ".")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loads::tests::load;

    #[test]
    fn progress_is_told_with_its_speed_and_what_is_left() {
        assert_eq!(bar(&load(50, 100)).as_deref(), Some("[############............]"));
        assert_eq!(bar(&load(50, 0)), None);
        assert_eq!(left(&load(100, 1_300), Some(20.0)).as_deref(), Some("20 rows/s, 1 min left"));
        assert_eq!(left(&load(100, 1_300), Some(0.0)).as_deref(), Some("0 rows/s"));
        assert_eq!(left(&TableLoad { paused: true, ..load(1, 2) }, Some(9.0)), None);
    }

    #[test]
    fn speed_is_counted_from_the_first_look() {
        let (mut before, now) = (Before::new(), Instant::now());
        assert_eq!(speed(&mut before, ("l", "t"), 100, now), None);
        assert_eq!(speed(&mut before, ("l", "t"), 300, now + Duration::from_secs(10)), Some(20.0));
        assert_eq!(speed(&mut before, ("l", "u"), 300, now), None, "another table of the load");
    }
}
