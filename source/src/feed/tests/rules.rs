//! Rows of a table with a rule for its columns, on every way into the topic.

use super::*;
use crate::columns::{ByOid, Choice, Mask, Rule, Ruled, tests::without};

fn seen() -> BTreeSet<String> {
    ["id", "name", "bio"].map(str::to_owned).into()
}

/// A session whose server answers every reselect with a secret.
fn world(rule: Rule, state: State) -> World {
    under(OnRewrite::Continue, rule, state)
}

fn under(on_rewrite: OnRewrite, rule: Rule, state: State) -> World {
    let reselected = Reselected::Seen { values: Some(vec![Some(b"secret selected".to_vec())]), upto: Lsn(300) };
    let confirmed = state.stream.flushed.0;
    let mut world =
        World::told(on_rewrite, Server { reselected, too_early: 0, shown: Shown::default() }, state, confirmed);
    world.feed.label.rules = [(7, Ruled { rule, columns: seen() })].into_iter().collect::<ByOid>();
    world
}

fn rule() -> Rule {
    without(&["name"], &[("bio", Mask::Hash)])
}

/// Everything that left the feed, as text.
fn all(world: &mut World) -> String {
    let records = world.feed.take_records();
    let state: String =
        records.iter().map(|(_, value)| String::from_utf8_lossy(value.as_deref().unwrap_or_default())).collect();
    format!("{:?} {state}", world.topic.0)
}

#[test]
fn what_a_rule_hides_is_in_no_record_of_any_kind() {
    for identity in ['d', 'f'] {
        let mut world = world(rule(), state());
        let kind = if identity == 'f' { b'O' } else { b'K' };
        let old = |id| match identity {
            'f' => [Some(id), Some("secret name"), Some("secret old")],
            _ => [Some(id), None, None],
        };
        world.transaction(
            50,
            200,
            &[
                (0, relation(&users(identity))),
                (110, insert(["1", "secret name", "secret bio"])),
                (120, update(Some((kind, old("1"))), ["1", "secret name", "secret more"])),
                (130, update(Some((kind, old("1"))), ["2", "secret name", "~"])),
                (140, delete(kind, old("2"))),
            ],
        );
        let text = all(&mut world);
        assert!(!text.contains("secret"), "under {identity}: {text}");
        let [schema, ..] = world.controls("schema")[..] else { panic!("no schema event") };
        let Some(Control::Schema { columns, fingerprint, .. }) = schema.event().control else { panic!("no schema") };
        assert_eq!(
            columns.iter().map(|column| (column.name.as_str(), column.type_oid)).collect::<Vec<_>>(),
            [("id", 20), ("bio", 25)]
        );
        let row = world.topic.0.iter().find(|sent| sent.key.is_some()).expect("a row");
        assert_eq!(row.header("schema"), Some(fingerprint.to_string().as_str()));
        assert_eq!(world.feed.state().table(7).expect("ours").rules, Some(rule().digest()));
    }
}

#[test]
fn a_chunk_by_the_same_rule_meets_the_touches_of_the_stream() {
    let mut begun = World::fresh();
    begun.feed.begin_load("l", LoadMode::First, &[(7, 3)], 1, &mut begun.topic).expect("a load begins");
    let mut world = world(rule(), begun.feed.state().clone());
    world.transaction(50, 200, &[(0, relation(&users('d'))), (110, insert(["9", "n", "b"]))]);
    let cut = rule().cut(&users('d'), &seen()).expect("a rule that fits");
    let id = CHUNK;
    world.feed.open_window(id, 7);
    world.transaction(
        90,
        300,
        &[(210, update(None, ["1", "secret", "~"])), (220, update(None, ["2", "secret", "secret"]))],
    );
    let mut rows = Rows::new(2);
    for line in [b"1\told".as_slice(), b"2\told", b"3\told"] {
        crate::copy::add_line(line, 2, &mut rows, &mut Vec::new(), Some(&cut)).expect("two cells");
    }
    let snapshot = "80:80:".parse().expect("a snapshot");
    let part = Part::Range(Range { after: None, upto: None });
    let chunk = Chunk {
        snapshot,
        relation: cut.relation.clone(),
        fingerprint: cut.fingerprint,
        look: 0,
        rows,
        part,
        ranges_of: None,
        load: Some("l".into()),
        round: 0,
    };
    assert!(world.feed.fill_window(id, chunk));
    meet_marker(&mut world, 400);
    let reads: Vec<_> = world.rows().into_iter().filter(|(op, ..)| op == "r").map(|(_, key, _)| key).collect();
    assert_eq!(reads, ["{\"id\":1}", "{\"id\":3}"], "the second came whole in the stream");
    let text = all(&mut world);
    assert!(!text.contains("secret") && !text.contains("old"), "{text}");
}

#[test]
fn another_rule_is_another_relation_and_a_renamed_column_stops() {
    let mut before = world(rule(), state());
    before.transaction(50, 200, &[(0, relation(&users('d'))), (110, insert(["1", "n", "b"]))]);
    let other = || without(&["name"], &[("bio", Mask::Fixed("*".into()))]);
    let left = before.feed.state().clone();
    let mut after = world(other(), left.clone());
    after.transaction(51, 400, &[(0, relation(&users('d'))), (310, insert(["2", "n", "b"]))]);
    assert_eq!(after.controls("schema").len(), 2, "one in each partition");
    let Some(Control::Schema { rows_rewritten, .. }) = after.controls("schema")[0].event().control else {
        panic!("none")
    };
    assert!(rows_rewritten, "what was published before keeps its old form");
    let mut stopped = under(OnRewrite::Stop, other(), left);
    stopped.tell(0, &begin(400, 51));
    stopped.tell(0, &relation(&users('d')));
    assert!(matches!(stopped.say(310, &insert(["2", "n", "b"])), Err(Error::Rewritten { .. })));

    let mut renamed = users('d');
    renamed.columns[1].name = "nick".into();
    after.tell(0, &begin(500, 52));
    assert!(matches!(after.say(0, &relation(&renamed)), Err(Error::Hidden { .. })));
    let key = Rule::new(Choice::Include(["name".to_owned()].into()), [].into(), &String::new().into());
    let mut hidden = world(key, state());
    assert!(matches!(hidden.say(0, &relation(&users('d'))), Err(Error::Hidden { .. })));
}

#[test]
fn a_shared_topic_has_no_tombstones() {
    let mut world = World::fresh();
    world.feed.label.shared = vec!["shop.public.users".into()];
    world.transaction(
        50,
        200,
        &[(0, relation(&users('d'))), (110, insert(["1", "a", "x"])), (120, delete(b'K', [Some("1"), None, None]))],
    );
    assert_eq!(world.rows(), [short("c", 1, 1), short("d", 1, 1)]);
}
