//! The judge is judged: each rule must fail on the smallest topic that breaks it.

use super::*;

/// Records of one partition from `seq position key value` lines; `-` is none, and a value `!kind` is a control event.
fn records(lines: &[(u64, &str, &str, &str)]) -> Records {
    let record = |(offset, (seq, position, key, value)): (usize, &(u64, &str, &str, &str))| {
        let mut headers =
            BTreeMap::from([("seq".to_owned(), seq.to_string()), ("position".to_owned(), (*position).to_owned())]);
        let value = match value.strip_prefix('!') {
            Some(kind) => {
                headers.insert("control".to_owned(), kind.to_owned());
                Some(r#"{"op":"m","source":{"snapshot":"false"},"control":{"load":"one"}}"#.to_owned())
            }
            None if *value == "-" => None,
            None => {
                let (op, rest) = value.split_at(1);
                Some(format!(r#"{{"op":"{op}","source":{{"snapshot":"false"}}{rest}}}"#))
            }
        };
        let key = (*key != "-").then(|| format!(r#"{{"id":{key}}}"#));
        Record { partition: 0, offset: offset as i64, key, value, headers }
    };
    Records(lines.iter().enumerate().map(record).collect())
}

fn fault(lines: &[(u64, &str, &str, &str)]) -> String {
    let records = records(lines);
    records.check().and_then(|()| records.fold().map(|rows| format!("{rows:?}"))).unwrap_or_else(|fault| fault)
}

#[test]
fn a_sound_topic_passes_and_folds() {
    let found = fault(&[
        (1, "A", "-", "!load_begin"),
        (2, "A", "1", r#"u,"after":{"id":1,"x":2},"unchanged":["bio"]"#),
        (3, "B", "1", r#"r,"after":{"id":1,"x":"two","bio":"b"}"#),
        (4, "B", "-", "!load_end"),
        (5, "C", "1", r#"u,"after":{"id":1,"x":null},"unchanged":["bio"]"#),
        (6, "D", "2", r#"c,"after":{"id":2,"x":true,"bio":"c"}"#),
        (7, "E", "2", "d"),
        (8, "E", "2", "-"),
    ]);
    assert_eq!(found, r#"[{"bio": Some("b"), "id": Some("1"), "x": None}]"#);
}

#[test]
fn a_moved_row_may_lack_a_column_until_it_goes() {
    let found = fault(&[
        (1, "A", "1", r#"c,"after":{"id":1},"unchanged":["bio"],"moved_from":{"id":9}"#),
        (2, "B", "1", r#"u,"after":{"id":1},"unchanged":["bio"]"#),
        (3, "C", "1", "d"),
        (4, "C", "1", "-"),
        (5, "D", "1", r#"c,"after":{"id":1,"bio":"b"}"#),
    ]);
    assert_eq!(found, r#"[{"bio": Some("b"), "id": Some("1")}]"#);
}

#[test]
fn an_answer_says_what_stands_and_each_key_has_one() {
    let with_answers = |lines: &[(u64, &str, &str, &str)]| {
        let mut records = records(lines);
        for record in records.0.iter_mut().skip(3).filter(|record| record.is_row()) {
            record.headers.insert("answer".to_owned(), "a1".to_owned());
        }
        let folded = records.fold().map(drop);
        folded
            .and_then(|()| records.answers("a1").map(|answers| answers.len().to_string()))
            .unwrap_or_else(|fault| fault)
    };
    let begun = |lines: &[(u64, &'static str, &'static str, &'static str)]| {
        let mut all = vec![
            (1, "A", "-", "!load_begin"),
            (2, "B", "1", r#"r,"after":{"id":1,"x":2}"#),
            (3, "B", "-", "!load_end"),
        ];
        all.extend(lines);
        with_answers(&all)
    };
    assert_eq!(begun(&[(4, "C", "1", r#"r,"after":{"id":1,"x":2}"#), (5, "D", "2", "d")]), "2");
    assert!(begun(&[(4, "C", "1", r#"r,"after":{"id":1,"x":3}"#)]).contains("another row"));
    assert!(begun(&[(4, "C", "1", "d")]).contains("stands already"));
    assert!(begun(&[(4, "C", "2", r#"r,"after":{"id":2,"x":3}"#)]).contains("is not there"));
    let twice = [(4, "C", "1", r#"r,"after":{"id":1,"x":2}"#), (5, "D", "1", r#"r,"after":{"id":1,"x":2}"#)];
    assert!(begun(&twice).contains("second time"));
}

#[test]
fn every_rule_has_a_topic_that_breaks_it() {
    let create = r#"c,"after":{"id":1}"#;
    let update = r#"u,"after":{"id":1}"#;
    let loaded: [(u64, &str, &str, &str); 2] = [(1, "A", "-", "!load_begin"), (2, "A", "-", "!load_end")];
    let after_load = |line| [&loaded[..], &[line]].concat();
    for (lines, words) in [
        (vec![(2, "A", "1", create)], "seq 2 where 1 was due"),
        (vec![(1, "B", "1", create), (2, "A", "2", r#"c,"after":{"id":2}"#)], "falls from position B to A"),
        (vec![(1, "A", "1", create), (2, "A", "1", update)], "is a row change at A behind one at A"),
        (vec![(1, "A", "1", create), (2, "A", "1", "-")], "does not follow its delete"),
        (vec![(1, "A", "1", "d"), (2, "B", "1", "-")], "does not follow its delete"),
        (vec![(1, "A", "1", "!schema")], "a control event with a key"),
        (vec![(1, "A", "-", "!surprise")], "unknown kind"),
        (vec![(1, "A", "-", "!load_end")], "which never began"),
        (vec![(1, "A", "2", create)], "contradicts in id"),
        (vec![(1, "A", "1", create), (2, "B", "1", r#"u,"after":{"id":1},"unchanged":["bio"]"#)], "which nobody knows"),
        (vec![(1, "A", "1", r#"c,"after":{"id":1,"x":1}"#), (2, "B", "1", update)], "nor calls it unchanged"),
        (after_load((3, "C", "1", update)), "which is not there"),
        (after_load((3, "C", "1", "d")), "which is not there"),
        ([&after_load((3, "C", "1", create))[..], &[(4, "D", "1", create)]].concat(), "which stands already"),
    ] {
        let found = fault(&lines);
        assert!(found.contains(words), "expected {words:?}, found {found:?}");
    }
}

#[test]
fn a_position_or_a_key_in_two_partitions_is_a_duplicate() {
    let two = |first: (u64, &str, &str, &str), second: (u64, &str, &str, &str)| {
        let (mut one, mut other) = (records(&[first]), records(&[second]));
        other.0[0].partition = 1;
        one.0.append(&mut other.0);
        one.check().expect_err("it is not sound")
    };
    let (first, second) = (r#"c,"after":{"id":1}"#, r#"c,"after":{"id":2}"#);
    assert!(two((1, "A", "1", first), (1, "A", "2", second)).contains("repeats the position A"));
    assert!(two((1, "A", "1", first), (1, "B", "1", first)).contains("also stands in partition 0"));
}
