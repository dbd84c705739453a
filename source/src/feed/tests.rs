//! The stream's loop against made-up streams: what stands in the topics afterwards, also when it is fed again from before.

mod commands;
mod ddl;
mod lists;
mod rules;

use std::sync::Mutex;

use proptest::prelude::*;
use schemas::event::{Control, LoadMode};
use schemas::key::Canonical;
use schemas::state::Range;
use schemas::{ChangeEvent, Columns, Seq};

use super::*;
use crate::foreign::encode;
use crate::pgoutput::{Old, Relation as Described};
use crate::relation::tests::{details, users};
use crate::state::tests::state;
use crate::watch;
use crate::window::{Part, Rows};

/// A record as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    topic: String,
    partition: i32,
    key: Option<String>,
    value: Option<String>,
    headers: Vec<(&'static str, String)>,
}

impl Sent {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str())
    }

    fn position(&self) -> Position {
        self.header("position").expect("every record has one").parse().expect("printed by us")
    }

    fn event(&self) -> ChangeEvent<'_> {
        ChangeEvent::decode(self.value.as_deref().expect("no tombstone").as_bytes()).expect("written by us")
    }
}

#[derive(Default)]
struct Topic(Vec<Sent>);

impl Outbox for Topic {
    fn send(&mut self, record: Record<'_>) -> Result<(), Error> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        self.0.push(Sent {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(text),
            value: record.value.map(text),
            headers: record.headers.iter().map(|(name, value)| (*name, text(value))).collect(),
        });
        Ok(())
    }
}

/// Knows `users`, and answers every reselect alike, after saying a number of times that it cannot yet.
struct Server {
    reselected: Reselected,
    too_early: u32,
    shown: Shown,
}

/// What the catalog shows of `users` whenever it is asked.
type Shown = Arc<Mutex<View>>;

struct View {
    /// `None` when it was dropped.
    table: Option<watch::Table>,
    details: Details,
    /// Whether the types of its key's columns have one.
    has_equality: bool,
    /// How often the table was looked at.
    looks: u32,
    /// From this transaction on none is visible yet.
    unseen_from: u32,
}

impl Default for View {
    fn default() -> View {
        let mut details = details();
        details.canonical.insert("name".into(), Canonical::Same);
        details.types.extend([20, 25]);
        View { table: Some(watch::tests::users()), details, has_equality: true, looks: 0, unseen_from: u32::MAX }
    }
}

impl Catalog for Server {
    fn sees(&mut self, xid: u32) -> Result<bool, Error> {
        Ok(xid < self.shown.lock().expect("nobody panics with it").unseen_from)
    }

    fn details(&mut self, _: &Described) -> Result<Details, Error> {
        Ok(self.shown.lock().expect("nobody panics with it").details.clone())
    }

    fn look(&mut self, _: &str, oid: u32, _: Option<&Imprint>) -> Result<Seen, Error> {
        let mut shown = self.shown.lock().expect("nobody panics with it");
        shown.looks += 1;
        let table = shown.table.clone();
        let tables = table.map(|table| (oid, table)).into_iter().collect();
        Ok(Seen { tables, ..watch::tests::seen(watch::tests::users()) })
    }

    fn are_keys(&mut self, _: u32, ends: &[&[String]]) -> Result<bool, Error> {
        Ok(ends.iter().all(|end| end.len() == 1 && end[0].parse::<i64>().is_ok()))
    }

    fn tells_keys_apart(&mut self, _: u32, _: &[String]) -> Result<bool, Error> {
        Ok(self.shown.lock().expect("nobody panics with it").has_equality)
    }

    /// Numbers are equal however they are written.
    fn same_keys(
        &mut self,
        _: &Relation,
        listed: &[&str],
        touched: &[&str],
    ) -> Result<Option<Vec<(usize, usize)>>, Error> {
        let number =
            |key: &&str| Columns::decode(key.as_bytes()).expect("a key").get("id").flatten()?.parse::<f64>().ok();
        let pairs = touched.iter().enumerate().flat_map(|(place, key)| {
            let rows = listed.iter().enumerate().filter(move |(_, other)| number(other) == number(key));
            rows.map(move |(row, _)| (place, row))
        });
        Ok(Some(pairs.collect()))
    }

    fn reselect(&mut self, row: &Reselect<'_>) -> Result<Reselected, Error> {
        assert!(!row.columns.is_empty(), "only asked for what is missing");
        match self.too_early.checked_sub(1) {
            Some(left) => {
                self.too_early = left;
                Ok(Reselected::NotYet)
            }
            None => Ok(self.reselected.clone()),
        }
    }
}

/// A feed with its topic.
struct World {
    feed: Feed,
    topic: Topic,
}

impl World {
    fn new(state: State, confirmed: u64) -> World {
        let values = Some(vec![Some(b"selected".to_vec())]);
        let reselected = Reselected::Seen { values, upto: Lsn(300) };
        World::on(Server { reselected, too_early: 0, shown: Shown::default() }, state, confirmed)
    }

    fn on(server: Server, state: State, confirmed: u64) -> World {
        World::told(OnRewrite::Stop, server, state, confirmed)
    }

    fn told(on_rewrite: OnRewrite, server: Server, state: State, confirmed: u64) -> World {
        let label = Label {
            name: "shop".into(),
            db: "shop".into(),
            messages: "tributary/s".into(),
            tombstones: true,
            on_rewrite,
            ..Label::default()
        };
        let feed = Feed::new(label, state, Lsn(confirmed), 1 << 20, Box::new(server));
        World { feed, topic: Topic::default() }
    }

    fn fresh() -> World {
        World::new(state(), 100)
    }

    /// A session that begins with what this one left, and a slot that stands at `confirmed`.
    fn restart(&self, confirmed: u64) -> World {
        World::new(self.feed.state().clone(), confirmed)
    }

    fn say(&mut self, start: u64, payload: &[u8]) -> Result<Taken, Error> {
        self.feed.data(Lsn(start), payload, 1, &mut self.topic)
    }

    fn tell(&mut self, start: u64, payload: &[u8]) {
        assert_eq!(self.say(start, payload).expect("a stream that can be read"), Taken::Whole);
    }

    /// A whole transaction of messages with their places.
    fn transaction(&mut self, xid: u32, commit: u64, messages: &[(u64, Vec<u8>)]) {
        self.tell(0, &begin(commit, xid));
        for (start, message) in messages {
            self.tell(*start, message);
        }
        self.tell(0, &end(commit));
    }

    /// What the rows' records are, in short: operation, key, position's n.
    fn rows(&self) -> Vec<(String, String, u32)> {
        let row = |sent: &Sent| {
            let op = sent.value.as_deref().map_or("tombstone".to_owned(), |value| value[7..8].to_owned());
            Some((op, sent.key.clone()?, sent.position().n))
        };
        self.topic.0.iter().filter_map(row).collect()
    }

    fn controls(&self, kind: &str) -> Vec<&Sent> {
        self.topic.0.iter().filter(|sent| sent.header("control") == Some(kind)).collect()
    }
}

fn begin(commit: u64, xid: u32) -> Vec<u8> {
    encode(&Message::Begin { commit: Lsn(commit), time: 7_000_000, xid })
}

fn end(commit: u64) -> Vec<u8> {
    encode(&Message::Commit { commit: Lsn(commit), end: Lsn(commit + 8) })
}

fn relation(described: &Described) -> Vec<u8> {
    encode(&Message::Relation(described.clone()))
}

/// Cells: `None` is null, `"~"` unchanged.
fn cells<'a>(cells: &[Option<&'a str>]) -> Vec<Cell<'a>> {
    let cell = |cell: &Option<&'a str>| match *cell {
        None => Cell::Null,
        Some("~") => Cell::Unchanged,
        Some(text) => Cell::Text(text.as_bytes()),
    };
    cells.iter().map(cell).collect()
}

/// The old tuple, of the kind that the stream names by a letter.
fn old<'a>(kind: u8, row: &[Option<&'a str>]) -> Old<'a> {
    match kind {
        b'K' => Old::Key(cells(row)),
        _ => Old::Row(cells(row)),
    }
}

/// The table of most tests.
const USERS: u32 = 7;

fn insert(new: [&str; 3]) -> Vec<u8> {
    encode(&Message::Insert { oid: USERS, new: cells(&new.map(Some)) })
}

fn update(before: Option<(u8, [Option<&str>; 3])>, new: [&str; 3]) -> Vec<u8> {
    let old = before.map_or(Old::None, |(kind, row)| old(kind, &row));
    encode(&Message::Update { oid: USERS, old, new: cells(&new.map(Some)) })
}

fn delete(kind: u8, row: [Option<&str>; 3]) -> Vec<u8> {
    encode(&Message::Delete { oid: USERS, old: old(kind, &row) })
}

fn truncate(oids: &[u32]) -> Vec<u8> {
    encode(&Message::Truncate { oids: oids.to_vec(), cascade: false, restart_identity: false })
}

fn message(lsn: u64, prefix: &str, content: &str) -> Vec<u8> {
    let content = content.as_bytes();
    encode(&Message::Logical { transactional: true, lsn: Lsn(lsn), prefix, content })
}

fn short(op: &str, id: u32, n: u32) -> (String, String, u32) {
    (op.to_owned(), format!("{{\"id\":{id}}}"), n)
}

/// A transaction that inserts, updates and deletes.
fn three(world: &mut World) {
    let messages = [
        (0, relation(&users('d'))),
        (110, insert(["1", "a", "x"])),
        (118, update(None, ["1", "b", "~"])),
        (126, delete(b'K', [Some("1"), None, None])),
    ];
    world.transaction(7, 200, &messages);
}

#[test]
fn changes_stand_in_the_topic_with_their_schema_in_front() {
    let mut world = World::fresh();
    three(&mut world);
    assert_eq!(world.controls("schema").len(), 2, "one for each partition");
    assert_eq!(world.rows(), [short("c", 1, 1), short("u", 1, 1), short("d", 1, 1), short("tombstone", 1, 1)]);
    let last = world.topic.0.last().expect("a tombstone");
    assert_eq!(last.position(), Position { commit: Lsn(200), change: Lsn(126), n: 1 });
    assert_eq!((world.feed.state().stream.position, world.feed.state().stream.flushed), (last.position(), Lsn(208)));
    let update =
        world.topic.0.iter().find(|sent| sent.value.as_deref().is_some_and(|value| value.contains("\"op\":\"u\"")));
    assert_eq!(update.expect("an update").event().unchanged, ["bio"]);
}

#[test]
fn what_is_not_utf8_stops_the_source_instead_of_making_a_record_that_nobody_can_read() {
    let mut world = World::fresh();
    world.tell(0, &begin(200, 1));
    world.tell(0, &relation(&users('d')));
    let mut bytes = insert(["1", "caf?", "b"]);
    let at = bytes.iter().position(|byte| *byte == b'?').expect("it was written");
    bytes[at] = 0xe9;
    let refused = world.say(150, &bytes).expect_err("Latin-1 is no UTF-8");
    assert!(matches!(&refused, Error::NotText { column, .. } if column == "name"), "{refused}");
    assert_eq!(refused.severity(), crate::Severity::Fatal);
    assert!(world.rows().is_empty());
}

#[test]
fn seq_is_dense_in_every_partition() {
    let mut world = World::fresh();
    let rows = (0..40).map(|n| (300 + 8 * n, insert([&n.to_string(), "a", "x"])));
    let messages: Vec<_> = [(0, relation(&users('d')))].into_iter().chain(rows).collect();
    world.transaction(7, 1_000, &messages);
    for partition in 0..2 {
        let seqs: Vec<u64> = world
            .topic
            .0
            .iter()
            .filter(|sent| sent.partition == partition)
            .map(|sent| sent.header("seq").expect("has one").parse().expect("a number"))
            .collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        assert_eq!(world.feed.state().topics()[0].topic.seq[partition as usize], Seq(seqs.len() as u64));
        assert!(seqs.len() > 5, "keys spread over the partitions");
    }
}

#[test]
fn what_is_sent_again_is_not_published_again() {
    let mut world = World::fresh();
    three(&mut world);
    let mut again = world.restart(100);
    three(&mut again);
    assert!(again.topic.0.is_empty());
    again.transaction(8, 300, &[(210, insert(["2", "a", "x"]))]);
    assert_eq!(again.rows(), [short("c", 2, 1)]);
}

#[test]
fn a_crash_in_the_middle_of_a_transaction_goes_on_behind_the_last_change() {
    let mut world = World::fresh();
    world.tell(0, &begin(200, 7));
    world.tell(0, &relation(&users('d')));
    world.tell(110, &insert(["1", "a", "x"]));
    assert_eq!(world.feed.state().stream.flushed, Lsn(100), "a part of a transaction is not flushed");
    let mut again = world.restart(100);
    three(&mut again);
    assert_eq!(again.rows(), [short("u", 1, 1), short("d", 1, 1), short("tombstone", 1, 1)]);
}

#[test]
fn nothing_is_confirmed_before_all_that_must_come_again_has_come() {
    let mut world = World::fresh();
    three(&mut world);
    world.transaction(8, 300, &[(210, insert(["2", "a", "x"]))]);
    let mut again = world.restart(100);
    assert_eq!(again.feed.confirmable(Lsn(308)), None);
    three(&mut again);
    assert_eq!(again.feed.confirmable(Lsn(308)), None);
    again.transaction(8, 300, &[(0, relation(&users('d'))), (210, insert(["2", "a", "x"]))]);
    again.feed.keepalive(Lsn(400)).expect("the same history");
    assert_eq!(again.feed.confirmable(Lsn(400)), Some(Lsn(200)), "no snapshot has shown them yet");
    again.feed.visible(&"9:9:".parse().expect("a snapshot"));
    assert_eq!(again.feed.confirmable(Lsn(400)), Some(Lsn(400)));
}

#[test]
fn another_history_stops_the_source() {
    let mut world = World::fresh();
    three(&mut world);
    let mut other = world.restart(100);
    let refused = other.feed.keepalive(Lsn(400)).expect_err("the transaction at 200 did not come again");
    assert!(matches!(refused, Error::OtherHistory(history::Mismatch::Gone(Lsn(200)))));

    let mut other = world.restart(100);
    other.tell(0, &begin(200, 9));
    other.tell(0, &relation(&users('d')));
    let refused = other.say(110, &insert(["1", "a", "x"])).expect_err("another xid at the same place");
    assert!(matches!(refused, Error::OtherHistory(history::Mismatch::New(Lsn(200)))));
}

#[test]
fn a_keepalive_inside_a_transaction_proves_nothing() {
    let mut world = World::fresh();
    world.tell(0, &begin(200, 7));
    world.feed.keepalive(Lsn(500)).expect("ignored");
    assert_eq!(world.feed.state().stream.flushed, Lsn(100));
}

/// Behind its commit, for the record must say that the beat itself is in Kafka.
#[test]
fn a_beat_is_answered_at_once_when_its_transaction_is_whole() {
    let mut world = World::fresh();
    world.tell(0, &begin(200, 7));
    world.tell(0, &message(208, "tributary/s", BEAT));
    assert_eq!(world.feed.urgency(), Urgency::None);
    world.tell(0, &end(200));
    assert_eq!(world.feed.urgency(), Urgency::Now);
    assert!(world.feed.received() > Lsn(200));
    let committed_ms = unix_ms(7_000_000);
    assert_eq!(world.feed.flushed(), Some((world.feed.received(), committed_ms)));
    world.feed.take_records();

    world.transaction(8, 300, &[(0, message(308, "tributary/other", BEAT))]);
    assert_eq!(world.feed.urgency(), Urgency::Idle, "another source's beat is not ours to answer");
    assert!(world.topic.0.is_empty());
}

#[test]
fn an_old_key_with_the_same_text_is_no_key_change() {
    let mut world = World::fresh();
    let same = update(Some((b'K', [Some("1"), None, None])), ["~", "b", "x"]);
    world.transaction(7, 200, &[(0, relation(&users('d'))), (110, same)]);
    assert_eq!(world.rows(), [short("u", 1, 1)]);
    let event = world.topic.0.last().expect("an update").event();
    assert_eq!(event.after.expect("a row").get("id"), Some(Some("1")), "filled from the old key");
}

#[test]
fn a_key_change_is_a_delete_and_a_create_that_name_each_other() {
    let mut world = World::fresh();
    let moved = update(Some((b'K', [Some("1"), None, None])), ["2", "b", "~"]);
    world.transaction(7, 200, &[(0, relation(&users('d'))), (110, moved)]);
    assert_eq!(world.rows(), [short("d", 1, 1), short("tombstone", 1, 1), short("c", 2, 2)]);
    let create = world.topic.0.last().expect("a create").event();
    assert_eq!(create.reselected, ["bio"]);
    assert_eq!(create.after.expect("a row").get("bio"), Some(Some("selected")));
    assert_eq!(create.moved_from, Some(Columns(vec![("id".into(), Some("1".into()))])));
}

#[test]
fn a_moved_row_that_is_not_visible_yet_leaves_no_trace_until_it_is() {
    let server =
        Server { reselected: Reselected::Seen { values: None, upto: Lsn(300) }, too_early: 2, shown: Shown::default() };
    let mut world = World::on(server, state(), 100);
    world.tell(0, &begin(200, 7));
    world.tell(0, &relation(&users('d')));
    world.tell(110, &insert(["1", "a", "x"]));
    let moved = update(Some((b'K', [Some("1"), None, None])), ["2", "b", "~"]);
    let before = (world.topic.0.clone(), world.feed.state().stream.clone());
    for _ in 0..2 {
        assert_eq!(world.say(110, &moved).expect("readable"), Taken::NotYet);
        assert_eq!((&world.topic.0, &world.feed.state().stream), (&before.0, &before.1));
    }
    world.tell(110, &moved);
    assert_eq!(world.rows(), [short("c", 1, 1), short("d", 1, 2), short("tombstone", 1, 2), short("c", 2, 3)]);
    assert_eq!(world.topic.0.last().expect("a create").event().unchanged, ["bio"], "the row is gone");
}

/// A row moved from 1 to 2, and its `bio` was read when the WAL ended at 300.
fn moved_at_200() -> World {
    let mut world = World::fresh();
    let moved = update(Some((b'K', [Some("1"), None, None])), ["2", "b", "~"]);
    world.transaction(7, 200, &[(0, relation(&users('d'))), (110, moved)]);
    world
}

#[test]
fn what_was_read_beside_the_stream_is_in_doubt_until_the_stream_has_caught_up() {
    let mut world = moved_at_200();
    assert_eq!(world.feed.state().moved().collect::<Vec<_>>(), [(7, "{\"id\":2}")]);
    world.feed.keepalive(Lsn(299)).expect("nothing wrong");
    assert_eq!(world.feed.state().moved().count(), 1);
    world.feed.keepalive(Lsn(300)).expect("nothing wrong");
    assert_eq!(world.feed.state().moved().count(), 0);
}

#[test]
fn a_moved_row_whose_column_was_renamed_is_read_again_when_the_stream_has_come_so_far() {
    let server = Server { reselected: Reselected::Renamed { upto: Lsn(300) }, too_early: 0, shown: Shown::default() };
    let mut world = World::on(server, state(), 100);
    let moved = update(Some((b'K', [Some("1"), None, None])), ["2", "b", "~"]);
    world.transaction(7, 200, &[(0, relation(&users('d'))), (110, moved)]);
    assert_eq!(world.topic.0.last().expect("a create").event().unchanged, ["bio"]);
    world.feed.keepalive(Lsn(299)).expect("nothing wrong");
    assert_eq!(world.feed.ending(), None);
    world.feed.keepalive(Lsn(300)).expect("nothing wrong");
    assert!(world.feed.ending().is_some());
    assert_eq!(world.feed.state().moved().count(), 1, "for the next session");
}

#[test]
fn another_session_trusts_no_reading_of_the_one_before_and_reads_the_row_again() {
    let mut world = moved_at_200().restart(208);
    world.feed.keepalive(Lsn(500)).expect("nothing has to come again");
    assert_eq!(world.feed.state().moved().count(), 1, "it may have been another server's");
    world.feed.open_window(CHUNK, 7);
    let chunk = Chunk {
        part: Part::Keys(vec!["{\"id\":2}".into()]),
        load: None,
        ..read("40:40:", &[["2", "b", "lost"]], None)
    };
    assert!(world.feed.fill_window(CHUNK, chunk));
    meet_marker(&mut world, 600);
    assert_eq!(world.rows(), [short("r", 2, 1)]);
    assert_eq!(world.feed.state().moved().count(), 0);
    assert_eq!(world.feed.take_outcomes(), [(CHUNK, Outcome::Done { rows: 1 })]);
}

#[test]
fn under_identity_full_toasted_values_come_from_the_old_row() {
    let mut world = World::fresh();
    let moved = update(Some((b'O', [Some("1"), Some("a"), Some("long")])), ["2", "b", "~"]);
    let changed = update(Some((b'O', [Some("3"), Some("a"), Some("longer")])), ["3", "b", "~"]);
    world.transaction(7, 200, &[(0, relation(&users('f'))), (110, moved), (118, changed)]);
    let bios: Vec<_> = world
        .topic
        .0
        .iter()
        .filter(|sent| sent.key.is_some() && sent.value.is_some())
        .filter_map(|sent| {
            let event = sent.event();
            assert!(event.unchanged.is_empty() && event.reselected.is_empty());
            event.after.map(|after| after.get("bio").flatten().map(str::to_owned))
        })
        .collect();
    assert_eq!(bios, [Some("long".to_owned()), Some("longer".to_owned())]);
}

#[test]
fn a_truncate_stands_once_in_every_partition() {
    let mut world = World::fresh();
    world.transaction(7, 200, &[(0, relation(&users('d'))), (110, truncate(&[7, 99]))]);
    let truncates = world.controls("truncate");
    assert_eq!(truncates.iter().map(|sent| sent.partition).collect::<Vec<_>>(), [0, 1]);
    let Some(Control::Truncate { tables, .. }) = truncates[0].event().control else { panic!("a truncate") };
    assert_eq!(tables.len(), 1, "the other table is not ours");
}

#[test]
fn a_changed_relation_is_announced_with_the_key_that_was() {
    let mut world = World::fresh();
    three(&mut world);
    let mut changed = users('d');
    changed.columns[1].name = "nick".into();
    world.topic.0.clear();
    world.transaction(8, 300, &[(0, relation(&changed)), (210, insert(["2", "a", "x"]))]);
    let Some(Control::Schema { previous_key, columns, .. }) = world.controls("schema")[0].event().control else {
        panic!("a schema event")
    };
    assert_eq!((previous_key, columns[1].name.as_str()), (Some(vec!["id".to_owned()]), "nick"));
}

#[test]
fn tables_that_are_not_ours_leave_no_trace() {
    let mut world = World::fresh();
    let mut other = users('d');
    other.oid = 8;
    let mut row = insert(["1", "a", "x"]);
    row[1..5].copy_from_slice(&8_u32.to_be_bytes());
    world.transaction(7, 200, &[(0, relation(&other)), (110, row), (118, message(126, "elsewhere", "hello"))]);
    assert!(world.topic.0.is_empty());
    assert_eq!((world.feed.urgency(), world.feed.state().stream.history.len()), (Urgency::Idle, 0));
}

const CHUNK: ChunkId = ChunkId(5);

fn loading() -> World {
    begun(World::fresh())
}

fn begun(mut world: World) -> World {
    world.feed.begin_load("l", LoadMode::First, &[(7, 10)], 1, &mut world.topic).expect("begun");
    world
}

fn read(snapshot: &str, rows: &[[&str; 3]], upto: Option<&str>) -> Chunk {
    let mut all = Rows::new(3);
    rows.iter().flatten().for_each(|cell| all.push(Some(cell.as_bytes())));
    let range = Range { after: None, upto: upto.map(|key| vec![key.to_owned()]) };
    Chunk {
        snapshot: snapshot.parse().expect("a snapshot"),
        relation: users('d'),
        rows: all,
        part: Part::Range(range),
        ranges_of: None,
        load: Some("l".into()),
        round: 0,
        fingerprint: crate::relation::fingerprint(&users('d')),
        look: 0,
    }
}

fn meet_marker(world: &mut World, commit: u64) {
    let marker = message(commit - 8, "tributary/s", &marker(CHUNK));
    world.transaction(50, commit, &[(commit - 16, marker)]);
}

#[test]
fn a_load_begins_in_every_partition_before_anything_else() {
    let world = loading();
    assert_eq!(world.topic.0.len(), 2);
    assert!(
        world
            .controls("load_begin")
            .iter()
            .all(|sent| sent.header("seq") == Some("1") && sent.position() == Position::before(Lsn(100)))
    );
}

#[test]
fn a_chunk_is_published_at_its_marker_and_its_last_ends_the_load() {
    let mut world = loading();
    world.feed.open_window(CHUNK, 7);
    assert!(world.feed.fill_window(CHUNK, read("40:40:", &[["1", "a", "x"], ["2", "b", "y"]], None)));
    assert!(world.feed.take_outcomes().is_empty());
    meet_marker(&mut world, 400);
    assert_eq!(world.rows(), [short("r", 1, 1), short("r", 2, 2)]);
    assert!(world.topic.0.iter().skip(2).all(|sent| sent.position().change == Lsn(391)), "in front of the next record");
    let ends = world.controls("load_end");
    assert_eq!((ends.len(), ends[0].position().n), (2, 3));
    assert_eq!(world.feed.take_outcomes(), [(CHUNK, Outcome::Done { rows: 2 })]);
    assert!(world.feed.state().loads().next().is_none());
}

#[test]
fn a_row_that_was_changed_meanwhile_is_published_as_it_is_at_the_marker() {
    let mut world = loading();
    world.feed.open_window(CHUNK, 7);
    world.feed.fill_window(CHUNK, read("40:40:", &[["1", "a", "x"], ["2", "b", "y"], ["3", "c", "z"]], Some("3")));
    let messages = [
        (0, relation(&users('d'))),
        (210, update(None, ["1", "A", "~"])),
        (218, update(None, ["2", "B", "Y"])),
        (226, delete(b'K', [Some("3"), None, None])),
    ];
    world.transaction(45, 300, &messages);
    meet_marker(&mut world, 400);
    let read: Vec<_> = world
        .topic
        .0
        .iter()
        .filter(|sent| sent.key.is_some() && sent.value.is_some())
        .map(Sent::event)
        .filter(|event| event.operation == schemas::Operation::Read)
        .collect();
    assert_eq!(read.len(), 1, "complete newer events stand in the topic already");
    let row = read[0].after.as_ref().expect("a row");
    assert_eq!((row.get("id"), row.get("name"), row.get("bio")), (Some(Some("1")), Some(Some("A")), Some(Some("x"))));
    assert!(world.controls("load_end").is_empty(), "the range has an upper end");
}

#[test]
fn a_chunk_that_missed_a_streamed_transaction_is_read_again() {
    let mut world = loading();
    world.transaction(45, 300, &[(0, relation(&users('d'))), (210, insert(["1", "a", "x"]))]);
    world.feed.open_window(CHUNK, 7);
    world.feed.fill_window(CHUNK, read("45:46:45", &[], None));
    meet_marker(&mut world, 400);
    assert!(matches!(world.feed.take_outcomes()[..], [(CHUNK, Outcome::Again(_))]));
    assert!(world.controls("load_end").is_empty());
}

/// Two are read at a time, one before the table is altered and one behind it; the later one's marker comes first.
#[test]
fn a_chunk_of_an_older_shape_is_read_again_behind_one_of_a_newer() {
    let mut world = loading();
    let mut altered = users('d');
    altered.columns[1].modifier = 44;
    let newer = Chunk {
        fingerprint: crate::relation::fingerprint(&altered),
        relation: altered,
        part: Part::Range(Range { after: Some(vec!["1".into()]), upto: None }),
        ..read("40:40:", &[["2", "b", "y"]], None)
    };
    let (first, second) = (CHUNK, ChunkId(CHUNK.0 + 1));
    [first, second].into_iter().for_each(|id| world.feed.open_window(id, 7));
    assert!(world.feed.fill_window(first, read("40:40:", &[["1", "a", "x"]], Some("1"))));
    assert!(world.feed.fill_window(second, newer));
    world.transaction(50, 400, &[(384, message(392, "tributary/s", &marker(second)))]);
    meet_marker(&mut world, 500);
    assert_eq!(world.rows(), [short("r", 2, 1)]);
    let outcomes = world.feed.take_outcomes();
    assert!(matches!(outcomes[..], [_, (CHUNK, Outcome::Again(_))]), "{outcomes:?}");
}

/// The loop waits for each answer, and each reader has asked under its table's lock already.
#[test]
fn the_catalog_is_asked_once_for_all_chunks_of_the_same_look() {
    let shown = Shown::default();
    let server = Server { reselected: Reselected::NotYet, too_early: 0, shown: shown.clone() };
    let mut world = begun(World::on(server, state(), 100));
    let keys = ["1", "2", "3", "4"];
    for (n, (look, asked)) in [(3, 1), (3, 1), (4, 2), (4, 2)].into_iter().enumerate() {
        let after = n.checked_sub(1).map(|before| vec![keys[before].to_owned()]);
        let part = Part::Range(Range { after, upto: Some(vec![keys[n].to_owned()]) });
        world.feed.open_window(CHUNK, 7);
        let chunk = Chunk { look, part, ..read("60:60:", &[[keys[n], "a", "x"]], None) };
        assert!(world.feed.fill_window(CHUNK, chunk));
        meet_marker(&mut world, 400 + 100 * n as u64);
        assert_eq!(shown.lock().expect("nobody panics with it").looks, asked, "after chunk {n}");
    }
    assert_eq!(world.rows().len(), 4);
}

/// Whatever others write into the stream, nothing is committed for it.
#[test]
fn a_marker_is_known_by_the_chunk_that_was_read() {
    let mut world = loading();
    let is_marker = |world: &World, prefix: &str, content: &str| world.feed.is_marker(&message(392, prefix, content));
    world.feed.open_window(CHUNK, 7);
    assert!(!is_marker(&world, "tributary/s", &marker(CHUNK)), "nothing was read yet");
    assert!(world.feed.fill_window(CHUNK, read("40:40:", &[["1", "a", "x"]], None)));
    assert!(is_marker(&world, "tributary/s", &marker(CHUNK)));
    assert!(!is_marker(&world, "tributary/other", &marker(CHUNK)));
    assert!(!is_marker(&world, "tributary/s", &marker(ChunkId(CHUNK.0 + 1))));
    assert!(!is_marker(&world, "tributary/s", BEAT) && !is_marker(&world, "outbox", "an event"));
    assert!(!world.feed.is_marker(&insert(["1", "a", "x"])));
}

#[test]
fn a_marker_that_was_published_and_comes_again_is_not_ours_any_more() {
    let mut world = loading();
    world.feed.open_window(CHUNK, 7);
    world.feed.fill_window(CHUNK, read("40:40:", &[["1", "a", "x"]], None));
    meet_marker(&mut world, 400);
    let mut again = world.restart(100);
    meet_marker(&mut again, 400);
    assert!(again.topic.0.is_empty());
}

/// One message of a made-up transaction.
#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Update(u8),
    Patch(u8),
    Move(u8, u8),
    Delete(u8),
    Truncate,
    /// Another shape of the table from here on.
    Alter,
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        4 => (0..9_u8).prop_map(Step::Insert),
        4 => (0..9_u8).prop_map(Step::Update),
        4 => (0..9_u8).prop_map(Step::Patch),
        3 => (0..9_u8, 10..19_u8).prop_map(|(from, to)| Step::Move(from, to)),
        3 => (0..9_u8).prop_map(Step::Delete),
        1 => Just(Step::Truncate),
        1 => Just(Step::Alter),
    ];
    proptest::collection::vec(proptest::collection::vec(step, 1..6), 1..8)
}

/// The stream of these transactions, as a server sends it: (start, message), and after which LSN a transaction is whole.
fn stream(transactions: &[Vec<Step>]) -> Vec<Vec<(u64, Vec<u8>)>> {
    let (mut lsn, mut shape) = (104, users('d'));
    let mut streamed = Vec::new();
    for (xid, steps) in transactions.iter().enumerate() {
        let mut rows = Vec::new();
        // A server describes a relation once in a session; here any transaction may be a session's first.
        let mut described = false;
        for step in steps {
            let old = |id: &u8| [Some(id.to_string()), None, None];
            let id = |id: &u8| id.to_string();
            let message = match step {
                Step::Alter => {
                    shape.columns[1].modifier += 1;
                    described = false;
                    continue;
                }
                Step::Insert(key) => insert([&id(key), "a", "x"]),
                Step::Update(key) => update(None, [&id(key), "b", "y"]),
                Step::Patch(key) => update(None, [&id(key), "c", "~"]),
                Step::Move(from, to) => {
                    let key = old(from);
                    update(Some((b'K', [key[0].as_deref(), None, None])), [&id(to), "d", "~"])
                }
                Step::Delete(key) => delete(b'K', [old(key)[0].as_deref(), None, None]),
                Step::Truncate => truncate(&[7]),
            };
            if !described {
                rows.push((0, relation(&shape)));
                described = true;
            }
            rows.push((lsn, message));
            // Some changes share an address, as those of one COPY do.
            lsn += if matches!(step, Step::Insert(key) if key % 2 == 0) { 0 } else { 8 };
        }
        lsn += 8;
        let commit = lsn;
        lsn += 16;
        let mut whole = vec![(0, begin(commit, xid as u32 + 5))];
        whole.extend(rows);
        whole.push((0, end(commit)));
        streamed.push(whole);
    }
    streamed
}

proptest! {
    /// Invariants 2 and 3 without a broker: whenever the process dies and from wherever the server sends again, the
    /// committed view is record for record what it would have been without.
    #[test]
    fn whatever_dies_whenever_the_topic_is_the_same(
        transactions in steps(),
        crashes in proptest::collection::vec((0_usize..40, 0_usize..40), 0..4),
    ) {
        let stream = stream(&transactions);
        let mut undisturbed = World::fresh();
        stream.iter().flatten().for_each(|(start, message)| undisturbed.tell(*start, message));

        let mut world = World::fresh();
        let mut committed = (Vec::new(), world.feed.state().clone());
        let mut confirmed = 0;
        for (settle_at, die_after) in crashes {
            let flat = stream[confirmed..].iter().flatten().count();
            for (n, (start, message)) in stream[confirmed..].iter().flatten().enumerate() {
                if n == settle_at.min(flat) {
                    world.feed.take_records();
                    committed = (world.topic.0.clone(), world.feed.state().clone());
                }
                if n == settle_at + die_after {
                    break;
                }
                world.tell(*start, message);
            }
            let (topic, state) = committed.clone();
            // The server sends again from some transaction that is not beyond what is flushed.
            let flushed = state.stream.flushed.0;
            let ends = |transaction: &Vec<(u64, Vec<u8>)>| u64::from_be_bytes(transaction.last().expect("has an end").1[10..18].try_into().expect("eight bytes"));
            let whole = stream.iter().take_while(|transaction| ends(transaction) <= flushed).count();
            confirmed = whole.saturating_sub(die_after % 3);
            let at = if confirmed == 0 { 100 } else { ends(&stream[confirmed - 1]) };
            world = World::new(state, at);
            world.topic.0 = topic;
        }
        stream[confirmed..].iter().flatten().for_each(|(start, message)| world.tell(*start, message));
        prop_assert_eq!(&world.topic.0, &undisturbed.topic.0);
        prop_assert_eq!(world.feed.state().stream.position, undisturbed.feed.state().stream.position);
        for partition in 0..2 {
            let rows: Vec<_> = world.topic.0.iter().filter(|sent| sent.partition == partition && sent.header("control").is_none() && sent.value.is_some()).map(Sent::position).collect();
            prop_assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "row positions rise strictly");
        }
    }
}
