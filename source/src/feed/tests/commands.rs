//! Commands in the stream: what is followed, what is ignored, and what a list of keys is answered with.

use schemas::event::LoadMode;
use schemas::state::LoadKind;

use super::*;
use crate::command::Command;
use crate::snapshot::{Order, Work};
use crate::window::Listed;

const LOAD: &str = r#"load/a1/{"tables":[{"schema":"public","table":"users"}]}"#;

const SEAL_KEY: &str = "known to readers of the state";

impl World {
    /// The same as by somebody who may read the state.
    fn command(&mut self, commit: u64, text: &str) {
        self.feed.state.keep_seal_key(|| SEAL_KEY.into());
        match Command::read(text.as_bytes()) {
            Some(Ok(command)) => self.unsealed(commit, &command.sealed(SEAL_KEY)),
            _ => self.unsealed(commit, text),
        }
    }

    /// A transaction that holds one message, in front of `commit`.
    fn unsealed(&mut self, commit: u64, text: &str) {
        self.transaction(60, commit, &[(commit - 16, message(commit - 8, "tributary/s", text))]);
    }

    fn orders(&mut self) -> Vec<String> {
        let short = |order: Order| match order {
            Order::Do(task) => match task.work {
                Work::Load { load, done, .. } => format!("load {load} {} {:?}", task.oid, done.done),
                Work::Keys { load, keys } => format!("keys {} {}", load.unwrap_or_default(), keys.join(" ")),
            },
            Order::Cancel { load } => format!("cancel {load}"),
        };
        self.feed.take_orders().into_iter().map(short).collect()
    }
}

#[test]
fn an_ordered_load_begins_at_its_message_and_goes_on_in_the_session() {
    let mut world = World::fresh();
    three(&mut world);
    world.topic.0.clear();
    world.command(400, LOAD);
    let place = Position { commit: Lsn(400), change: Lsn(391), n: 0 };
    let kinds: Vec<_> = world.topic.0.iter().map(|sent| (sent.header("control"), sent.position())).collect();
    let (begin, truncate) = ((Some("load_begin"), place), (Some("truncate"), place));
    assert_eq!(kinds, [begin, begin, truncate, truncate], "in place of what was there, unless it is said otherwise");
    assert_eq!(world.orders(), ["load a1 7 []"]);
    let load = world.feed.state().load("a1").expect("it is under way").clone();
    assert_eq!((load.mode, load.kind, load.tables), (LoadMode::Replace, Some(LoadKind::Tables), vec![7]));
    assert_eq!(world.feed.state().load_table("a1", 7).expect("begun").rows_estimated, 10);
    assert!(world.feed.ending().is_none());

    world.topic.0.clear();
    world.command(500, LOAD);
    assert!(world.topic.0.is_empty() && world.orders().is_empty(), "the same id again");
    let mut again = world.restart(300);
    again.command(400, LOAD);
    assert!(again.topic.0.is_empty() && again.orders().is_empty(), "it comes again");

    world.feed.open_window(CHUNK, 7);
    let chunk = Chunk { load: Some("a1".into()), ..read("70:70:", &[["1", "a", "x"]], None) };
    assert!(world.feed.fill_window(CHUNK, chunk));
    meet_marker(&mut world, 600);
    assert_eq!(world.rows(), [short("r", 1, 1)]);
    assert_eq!(world.controls("load_end").len(), 2);
    assert!(world.feed.state().load("a1").is_none());
}

#[test]
fn a_range_is_a_load_that_has_done_what_lies_outside() {
    let mut world = World::fresh();
    world.command(400, r#"range/a1/{"schema":"public","table":"users","after":["10"],"upto":["20"]}"#);
    assert_eq!(world.controls("load_begin").len(), 2);
    assert!(world.controls("truncate").is_empty());
    let done = &world.feed.state().load_table("a1", 7).expect("begun").done;
    let key = |text: &str| Some(vec![text.to_owned()]);
    assert_eq!(*done, [Range { after: None, upto: key("10") }, Range { after: key("20"), upto: None }]);
}

#[test]
fn what_cannot_be_followed_leaves_a_remark_and_nothing_else() {
    let users = r#""schema":"public","table":"users""#;
    let mut world = World::fresh();
    world.command(400, LOAD);
    world.topic.0.clear();
    world.orders();
    let before = world.feed.state().stream.position;
    for (n, text) in [
        r#"load/b/{"tables":[{"schema":"secret","table":"users"}]}"#.to_owned(),
        format!(r#"load/b/{{"tables":[{{{users}}}]}}"#),
        r#"load/b/{"tables":"secret"}"#.to_owned(),
        format!(r#"range/b/{{{users},"after":["secret"]}}"#),
        format!(r#"range/b/{{{users},"after":["10"],"upto":["10"]}}"#),
        format!(r#"keys/b/{{{users},"keys":[{{"name":"secret"}}]}}"#),
        format!(r#"keys/b/{{{users},"keys":[{{"id":1,"name":"secret"}}]}}"#),
        r#"pause/b/{"load":"secret"}"#.to_owned(),
        r#"cancel/b/{"load":"secret"}"#.to_owned(),
    ]
    .iter()
    .enumerate()
    {
        world.command(500 + 100 * n as u64, text);
        let remarks = world.feed.take_remarks();
        assert!(remarks.len() == 1 && !remarks[0].contains("secret"), "{text}: {remarks:?}");
    }
    assert!(world.topic.0.is_empty() && world.orders().is_empty());
    assert_eq!((world.feed.state().loads().count(), world.feed.state().stream.position), (1, before));
    for n in 0..1_000 {
        world.command(10_000 + 100 * n, "load/b/");
    }
    assert!(world.feed.take_remarks().len() <= 20, "nobody fills the log");
    for n in 0..1_000 {
        world.command(200_000 + 100 * n, "load/b/");
        assert!(world.feed.take_remarks().is_empty(), "nor bit by bit");
    }
}

#[test]
fn wishes_to_read_the_configuration_again_are_followed_a_few_times_and_then_later() {
    let mut world = World::fresh();
    let mut followed = 0;
    for n in 0..100 {
        world.command(400 + 100 * n, &format!("configuration/c{n}/{{}}"));
        followed += u32::from(world.feed.take_reread());
    }
    assert_eq!(followed, crate::allowance::AT_ONCE_MAX);
    world.feed.now_ms += 180_000;
    assert!(world.feed.take_reread(), "the last of them stands for all that were not followed");
    world.feed.now_ms += 180_000;
    assert!(!world.feed.take_reread());
}

#[test]
fn lists_are_taken_up_while_what_waits_for_an_answer_is_bounded() {
    let mut world = World::fresh();
    let list = |n: u64| {
        let keys: Vec<String> = (0..1_000).map(|key| format!("{{\"id\":\"{n}{key}{}\"}}", "x".repeat(230))).collect();
        format!(r#"keys/k{n}/{{"schema":"public","table":"users","keys":[{}]}}"#, keys.join(","))
    };
    (0..100).for_each(|n| world.command(400 + 100 * n, &list(n)));
    let open = world.feed.state().loads().count();
    assert!((40..70).contains(&open), "{open}");
    let remarks = world.feed.take_remarks();
    assert!(remarks[0].contains("listed already"), "{remarks:?}");
    world.command(20_000, r#"cancel/c1/{"load":"k0"}"#);
    world.command(20_100, &list(200));
    assert_eq!(world.feed.state().loads().count(), open, "one has made room for another");
}

#[test]
fn a_list_of_keys_without_equality_is_refused() {
    let shown = Shown::default();
    shown.lock().expect("nobody panics with it").has_equality = false;
    let server = Server { reselected: Reselected::NotYet, too_early: 0, shown };
    let mut world = World::on(server, state(), 100);
    world.command(400, r#"keys/k1/{"schema":"public","table":"users","keys":[{"id":1}]}"#);
    let remarks = world.feed.take_remarks();
    assert!(remarks.len() == 1 && remarks[0].contains("without equality"), "{remarks:?}");
    assert!(world.feed.state().load("k1").is_none() && world.orders().is_empty());
}

/// Anybody may have rows read; nobody empties tables, or ends what others have ordered, without the right to read the state.
#[test]
fn what_takes_something_away_needs_a_seal() {
    let mut world = World::fresh();
    three(&mut world);
    world.command(400, &LOAD.replace("a1", "b1").replace("]}", r#"],"mode":"merge"}"#));
    world.feed.take_remarks();
    world.topic.0.clear();
    world.orders();
    let mut commit = 500;
    for text in [LOAD, r#"pause/p1/{"load":"b1"}"#, r#"resume/p2/{"load":"b1"}"#, r#"cancel/p3/{"load":"b1"}"#] {
        world.unsealed(commit, text);
        let forged = Command::read(text.as_bytes()).expect("a command's kind").expect("a command").sealed("another");
        world.unsealed(commit + 100, &forged);
        commit += 200;
        assert_eq!(world.feed.take_remarks().len(), 2, "{text}");
    }
    assert!(world.topic.0.is_empty() && world.orders().is_empty());
    world.command(commit, r#"cancel/p4/{"load":"b1"}"#);
    world.orders();
    world.unsealed(commit + 100, &LOAD.replace("]}", r#"],"mode":"merge"}"#));
    assert_eq!(world.orders(), ["load a1 7 []"], "a wish to read");
}

#[test]
fn a_load_is_paused_resumed_and_cancelled_by_its_id() {
    let mut world = World::fresh();
    world.command(400, LOAD);
    world.orders();
    world.command(500, r#"pause/p1/{"load":"a1"}"#);
    assert_eq!(world.orders(), ["cancel a1"]);
    assert!(world.feed.state().load("a1").expect("it waits").paused);
    assert!(crate::snapshot::of_load(world.feed.state(), "a1").is_empty(), "nor by the next session");
    // A chunk that was under way still counts.
    world.feed.open_window(CHUNK, 7);
    let chunk = Chunk { load: Some("a1".into()), ..read("70:70:", &[["1", "a", "x"]], Some("1")) };
    assert!(world.feed.fill_window(CHUNK, chunk));
    meet_marker(&mut world, 600);
    world.command(700, r#"resume/p2/{"load":"a1"}"#);
    let range = Range { after: None, upto: Some(vec!["1".into()]) };
    assert_eq!(world.orders(), [format!("load a1 7 {:?}", [range])]);

    world.feed.open_window(CHUNK, 7);
    world.topic.0.clear();
    world.command(800, r#"cancel/p3/{"load":"a1"}"#);
    let ends = world.controls("load_end");
    assert_eq!((ends.len(), ends[0].position().commit), (2, Lsn(800)));
    assert_eq!(world.orders(), ["cancel a1"]);
    assert!(world.feed.state().load("a1").is_none() && world.feed.state().load_table("a1", 7).is_none());
    let chunk = Chunk { load: Some("a1".into()), ..read("70:70:", &[["2", "a", "x"]], None) };
    assert!(world.feed.fill_window(CHUNK, chunk));
    world.topic.0.clear();
    meet_marker(&mut world, 900);
    assert!(world.topic.0.is_empty(), "its load is over");
}

#[test]
fn a_range_from_before_its_load_was_paused_counts_no_more_when_it_is_resumed() {
    let mut world = World::fresh();
    world.command(400, LOAD);
    world.feed.take_orders();
    let read_in = |round| Chunk { load: Some("a1".into()), round, ..read("70:70:", &[["1", "a", "x"]], None) };
    world.feed.open_window(CHUNK, 7);
    world.command(500, r#"pause/p1/{"load":"a1"}"#);
    world.command(600, r#"resume/r1/{"load":"a1"}"#);
    let orders = world.feed.take_orders();
    assert!(matches!(&orders[..], [Order::Cancel { .. }, Order::Do(task)] if task.round == 1), "{orders:?}");
    assert!(world.feed.fill_window(CHUNK, read_in(0)));
    meet_marker(&mut world, 700);
    assert!(world.rows().is_empty(), "others read the same by now");

    world.feed.open_window(CHUNK, 7);
    assert!(world.feed.fill_window(CHUNK, read_in(1)));
    meet_marker(&mut world, 800);
    assert_eq!(world.rows(), [short("r", 1, 1)]);
    assert!(world.feed.state().load("a1").is_none());
}

/// A list of the keys 1 to 4 is ordered, and read while 1 and 2 are there.
fn listed(world: &mut World) {
    let keys = r#"{"id":1},{"id":2},{"id":3},{"id":4},{"id":4},{"id":"x"}"#;
    world.command(400, &format!(r#"keys/k1/{{"schema":"public","table":"users","keys":[{keys}]}}"#));
    let all: Vec<String> = ["\"x\"", "1", "2", "3", "4"].iter().map(|id| format!("{{\"id\":{id}}}")).collect();
    assert_eq!(world.orders(), [format!("keys k1 {}", all.join(" "))]);
    world.feed.open_list(CHUNK, 7);
    let mut rows = Rows::new(3);
    for row in [["1", "a", "x"], ["2", "b", "y"], ["3", "", ""], ["4", "", ""]] {
        row.iter().for_each(|cell| rows.push((!cell.is_empty()).then_some(cell.as_bytes())));
    }
    let row = |n: usize| Listed { keys: vec![n], is_there: n < 2 };
    let part = Part::List { keys: all[1..].to_vec(), void: all[..1].to_vec(), rows: (0..4).map(row).collect() };
    let chunk = Chunk { load: Some("k1".into()), part, rows, ..read("70:70:", &[], None) };
    assert!(world.feed.fill_window(CHUNK, chunk));
}

fn answered(world: &World) -> Vec<(String, Option<String>, String)> {
    let of = |sent: &&Sent| sent.header("answer") == Some("k1");
    let answer = |sent: &Sent| {
        let event = sent.event();
        assert_eq!(event.source.snapshot, "incremental");
        let name = event.after.map(|after| format!("{:?}", after.get("name").flatten().unwrap_or_default()));
        (sent.value.as_deref().expect("no tombstone")[7..8].to_owned(), name, sent.key.clone().expect("it has a key"))
    };
    world.topic.0.iter().filter(of).map(answer).collect()
}

#[test]
fn each_key_of_a_list_has_one_answer_as_it_is_at_the_marker() {
    let mut world = World::fresh();
    listed(&mut world);
    let messages = [
        (0, relation(&users('d'))),
        (410, update(None, ["1", "A", "X"])),
        (418, delete(b'K', [Some("2"), None, None])),
        (426, insert(["3", "C", "z"])),
        (434, update(None, ["3", "CC", "~"])),
    ];
    world.transaction(75, 450, &messages);
    meet_marker(&mut world, 600);
    let answer = |op: &str, name: Option<&str>, id: u8| {
        (op.to_owned(), name.map(|name| format!("{name:?}")), format!("{{\"id\":{id}}}"))
    };
    let expected = [answer("r", Some("A"), 1), answer("d", None, 2), answer("r", Some("CC"), 3), answer("d", None, 4)];
    assert_eq!(answered(&world), expected);
    assert_eq!(world.feed.take_outcomes(), [(CHUNK, Outcome::Done { rows: 4 })]);
    assert!(world.feed.state().load("k1").is_none() && world.feed.state().load_table("k1", 7).is_none());
    assert!(world.controls("load_begin").is_empty() && world.controls("load_end").is_empty());
}

/// Where keys have no canonical text the server says whose key a text is: its own, under another text, or a neighbour's.
#[test]
fn a_list_whose_keys_only_the_server_tells_apart_is_answered_though_others_are_written() {
    let shown = Shown::default();
    shown.lock().expect("nobody panics with it").details.canonical.remove("id");
    let server = Server { reselected: Reselected::NotYet, too_early: 0, shown };
    let mut world = World::on(server, state(), 100);
    listed(&mut world);
    let messages = [
        (0, relation(&users('d'))),
        (410, update(None, ["9", "another", "X"])),
        (418, delete(b'K', [Some("1.0"), None, None])),
        (426, insert(["3.0", "C", "z"])),
    ];
    world.transaction(75, 450, &messages);
    meet_marker(&mut world, 600);
    let answers: Vec<_> = answered(&world).into_iter().map(|(op, name, key)| (op, name.is_some(), key)).collect();
    let answer = |op: &str, is_there, key: &str| (op.to_owned(), is_there, format!("{{\"id\":{key}}}"));
    let expected = [answer("d", false, "1"), answer("r", true, "2"), answer("r", true, "3.0"), answer("d", false, "4")];
    assert_eq!(answers, expected);
    assert!(world.feed.state().load("k1").is_none());
}

#[test]
fn a_row_that_the_stream_does_not_tell_whole_is_read_again() {
    let mut world = World::fresh();
    listed(&mut world);
    // The row moved to a key of the list, and one of its columns was read beside the stream.
    let moved = update(Some((b'K', [Some("9"), None, None])), ["3", "b", "~"]);
    world.transaction(75, 450, &[(0, relation(&users('d'))), (410, moved)]);
    meet_marker(&mut world, 600);
    assert!(matches!(world.feed.take_outcomes()[..], [(CHUNK, Outcome::Again(_))]));
    assert!(answered(&world).is_empty() && world.feed.state().load("k1").is_some());
}

#[test]
fn a_list_is_independent_of_a_load_and_of_its_truncate() {
    let mut world = World::fresh();
    listed(&mut world);
    world.command(500, LOAD);
    assert_eq!(world.controls("truncate").len(), 2, "a truncate of our own");
    meet_marker(&mut world, 600);
    let ops: Vec<String> = answered(&world).into_iter().map(|(op, ..)| op).collect();
    assert_eq!(ops, ["r", "r", "d", "d"]);
    assert!(world.feed.state().load("a1").is_some());
}

#[test]
fn what_was_answered_before_a_list_was_resumed_is_not_answered_twice() {
    let mut world = World::fresh();
    listed(&mut world);
    let late = ChunkId(6);
    world.feed.open_list(late, 7);
    let mut rows = Rows::new(3);
    ["1", "late", "x"].iter().for_each(|cell| rows.push(Some(cell.as_bytes())));
    let listed = vec![Listed { keys: vec![0], is_there: true }];
    let part = Part::List { keys: vec!["{\"id\":1}".into()], void: vec![], rows: listed };
    let chunk = Chunk { load: Some("k1".into()), part, rows, ..read("70:70:", &[], None) };
    assert!(world.feed.fill_window(late, chunk));
    let marker = message(542, "tributary/s", &marker(late));
    world.transaction(50, 550, &[(534, marker)]);
    assert_eq!(answered(&world).len(), 1);
    assert_eq!(world.feed.state().load_table("k1", 7).expect("not done").rows, 1);
    meet_marker(&mut world, 600);
    let keys: Vec<String> = answered(&world).into_iter().map(|(.., key)| key).collect();
    assert_eq!(keys, ["{\"id\":1}", "{\"id\":2}", "{\"id\":3}", "{\"id\":4}"]);
}

#[test]
fn a_chunk_of_an_older_shape_is_read_again_behind_a_list_of_a_newer() {
    let mut world = loading();
    world.command(400, r#"keys/k1/{"schema":"public","table":"users","keys":[{"id":2}]}"#);
    let list = ChunkId(CHUNK.0 + 1);
    world.feed.open_window(CHUNK, 7);
    world.feed.open_list(list, 7);
    assert!(world.feed.fill_window(CHUNK, read("70:70:", &[["1", "a", "x"]], Some("1"))));
    let mut altered = users('d');
    altered.columns[1].modifier = 44;
    let listed = vec![Listed { keys: vec![0], is_there: true }];
    let newer = Chunk {
        fingerprint: crate::relation::fingerprint(&altered),
        relation: altered,
        load: Some("k1".into()),
        part: Part::List { keys: vec!["{\"id\":2}".into()], void: vec![], rows: listed },
        ..read("70:70:", &[["2", "b", "y"]], None)
    };
    assert!(world.feed.fill_window(list, newer));
    world.transaction(50, 500, &[(484, message(492, "tributary/s", &marker(list)))]);
    meet_marker(&mut world, 600);
    assert_eq!(answered(&world).len(), 1);
    let outcomes = world.feed.take_outcomes();
    assert!(matches!(outcomes[..], [_, (CHUNK, Outcome::Again("the table was altered"))]), "{outcomes:?}");
}
