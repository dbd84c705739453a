//! What the product's processes logged, and which of it a test did not expect.

use std::fs;
use std::path::Path;

/// What any test may see on a busy machine: Kafka names the leader of a new partition a moment before that broker knows.
const ANYWHERE: &str = "NotLeaderForPartition";

/// Lines of the level WARN or ERROR, panics and secrets that stand in a log and are not among `expected` (parts of lines).
pub fn unexpected(log: &Path, expected: &[String], secrets: &[&str]) -> Vec<String> {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.unwrap_or_else(|cause| format!("ERROR cannot read {}: {cause}", log.display()));
    text.lines()
        .filter_map(|line| {
            if secrets.iter().any(|secret| line.contains(secret)) {
                return Some(format!("a secret is printed: {line}"));
            }
            let listed = line.contains(ANYWHERE) || expected.iter().any(|part| line.contains(part.as_str()));
            (is_alarming(line) && !listed).then(|| line.to_owned())
        })
        .collect()
}

fn is_alarming(line: &str) -> bool {
    // time LEVEL target: message
    let level = line.split_whitespace().find(|word| ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(word));
    matches!(level, Some("ERROR" | "WARN")) || line.contains("panicked at")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_listed_is_unexpected() {
        let log = tempfile::NamedTempFile::new().expect("a temporary file");
        let lines = "2026-01-01T00:00:00Z  INFO source: streaming WARN\n\
                     2026-01-01T00:00:01Z  WARN source: Kafka does not answer\n\
                     2026-01-01T00:00:02Z ERROR sink: the target has no table\n\
                     thread 'main' panicked at source/src/lib.rs:1:1\n\
                     2026-01-01T00:00:03Z DEBUG postgres: password hunter2\n";
        fs::write(log.path(), lines).expect("a temporary file can be written");
        let found = unexpected(log.path(), &["Kafka does not answer".to_owned()], &["hunter2"]);
        let expected = ["ERROR sink", "panicked at", "a secret is printed"];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (line, part) in found.iter().zip(expected) {
            assert!(line.contains(part), "{line}");
        }
    }
}
