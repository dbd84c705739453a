//! A list of tables follows another while everything dies: each change stands where the list in force at its commit puts it.

use schemas::TableName;
use schemas::event::LoadMode;
use schemas::state::{Table, Topic as TopicRecord};

use super::*;
use crate::lists::ListId;

/// Listed all the time.
const KEPT: u32 = 7;
/// Listed until the list changes.
const REMOVED: u32 = 8;
/// Listed from then on.
const ADDED: u32 = 9;

fn name(oid: u32) -> TableName {
    TableName::new("public", ["users", "orders", "items"][oid as usize - 7])
}

fn described(oid: u32) -> Described {
    Described { oid, table: name(oid).table, ..users('d') }
}

fn topic_of(oid: u32) -> String {
    format!("shop.{}", name(oid))
}

fn table(oid: u32) -> Table {
    Table { name: name(oid), topic: topic_of(oid), ..state().table(KEPT).expect("the state has it").clone() }
}

fn topic_record() -> TopicRecord {
    TopicRecord { id: "t".into(), partitions: 2, seq: vec![Seq(0); 2], former: vec![] }
}

/// Both tables of the old list.
fn old_list() -> State {
    let mut state = state();
    state.set_topic(topic_of(REMOVED), topic_record());
    state.add_table(REMOVED, table(REMOVED));
    state
}

fn new_list(since: u64, mode: LoadMode) -> NextList {
    NextList {
        publications: vec!["q".into()],
        since: Some(Lsn(since)),
        topics: vec![(topic_of(ADDED), topic_record())],
        added: vec![Added { oid: ADDED, table: table(ADDED), load: Some((mode, 10)) }],
        removed: vec![REMOVED],
    }
}

fn insert_into(oid: u32, id: u64) -> Vec<u8> {
    let mut row = insert([&id.to_string(), "a", "x"]);
    row[1..5].copy_from_slice(&oid.to_be_bytes());
    row
}

/// What the server has in its WAL, in the order of commits.
#[derive(Clone, Debug)]
enum Whole {
    /// One row in each of these tables.
    Rows(Vec<u32>),
    /// The message of a list.
    List(u128),
}

const STEP: u64 = 100;
const FIRST: u64 = 104;

fn start_of(index: usize) -> u64 {
    FIRST + STEP * index as u64
}

/// One transaction as the server sends it under publications that carry `carried`.
fn sent(index: usize, whole: &Whole, carried: &[u32]) -> Vec<(u64, Vec<u8>)> {
    let (at, commit) = (start_of(index), start_of(index) + 80);
    let mut out = vec![(0, begin(commit, index as u32 + 5))];
    match whole {
        Whole::Rows(oids) => {
            for (n, oid) in oids.iter().enumerate().filter(|(_, oid)| carried.contains(oid)) {
                out.push((0, relation(&described(*oid))));
                out.push((at + 8 * n as u64, insert_into(*oid, index as u64)));
            }
        }
        Whole::List(id) => out.push((at, message(at + 48, "tributary/s", &format!("list/{:032x}", id)))),
    }
    out.push((0, end(commit)));
    out
}

#[test]
fn the_new_list_begins_at_its_message_with_the_loads_of_what_it_adds() {
    for (mode, kinds) in [(LoadMode::Merge, vec!["load_begin"]), (LoadMode::Replace, vec!["load_begin", "truncate"])] {
        let mut world = World::new(old_list(), 100);
        let feed = |world: &mut World, index, whole: &Whole| {
            sent(index, whole, &[KEPT, REMOVED, ADDED]).iter().for_each(|(start, message)| world.tell(*start, message));
        };
        feed(&mut world, 0, &Whole::Rows(vec![KEPT, REMOVED, ADDED]));
        world.feed.expect_list(ListId(5), new_list(100, mode));
        feed(&mut world, 1, &Whole::List(4));
        assert_eq!(world.feed.ending(), None, "somebody else's message");
        world.topic.0.clear();
        feed(&mut world, 2, &Whole::List(5));
        assert!(world.feed.ending().is_some());
        let stream = &world.feed.state().stream;
        let place = Position { commit: Lsn(384), change: Lsn(351), n: 0 };
        assert_eq!((stream.position, stream.flushed), (place, Lsn(392)));
        assert_eq!(stream.history.iter().map(|sent| sent.0).collect::<Vec<_>>(), [Lsn(384)]);
        assert_eq!((&stream.publications[..], stream.since), (&["q".to_owned()][..], Some(Lsn(100))));
        for partition in 0..2 {
            let records = world.topic.0.iter().filter(|sent| sent.partition == partition);
            let found: Vec<_> =
                records.map(|sent| (sent.header("control").expect("nothing else"), sent.position())).collect();
            assert_eq!(found, kinds.iter().map(|kind| (*kind, place)).collect::<Vec<_>>());
        }
        let state = world.feed.state();
        assert!(state.table(REMOVED).is_none() && state.table(ADDED).is_some());
        let left = state.topics().iter().find(|topic| topic.name == topic_of(REMOVED)).expect("it stays");
        assert_eq!(left.topic.former, [name(REMOVED)]);
        let records: Vec<_> =
            world.feed.take_records().into_iter().map(|(key, value)| (key, value.is_some())).collect();
        assert!(records.contains(&(format!("table/{REMOVED}"), false)), "{records:?}");
    }
}

#[test]
fn a_table_that_comes_back_goes_on_in_its_topic_and_a_load_goes_on_without_one_that_leaves() {
    let mut world = World::new(old_list(), 100);
    world.feed.begin_load("l", LoadMode::First, &[(KEPT, 10), (REMOVED, 10)], 1, &mut world.topic).expect("begun");
    world.feed.expect_list(ListId(5), NextList { removed: vec![REMOVED], ..NextList::default() });
    sent(0, &Whole::List(5), &[]).iter().for_each(|(start, message)| world.tell(*start, message));
    let loads: Vec<_> = world.feed.state().loads().map(|(_, load)| load.tables.clone()).collect();
    assert_eq!((loads, world.feed.state().load_table("l", REMOVED)), (vec![vec![KEPT]], None));

    let mut again = world.restart(100);
    let added = Added { oid: REMOVED, table: table(REMOVED), load: Some((LoadMode::Replace, 10)) };
    again.feed.expect_list(ListId(6), NextList { added: vec![added], ..NextList::default() });
    sent(0, &Whole::List(5), &[]).iter().for_each(|(start, message)| again.tell(*start, message));
    sent(1, &Whole::List(6), &[]).iter().for_each(|(start, message)| again.tell(*start, message));
    let seqs: Vec<_> = again.topic.0.iter().map(|sent| sent.header("seq").expect("has one")).collect();
    assert_eq!(seqs, ["2", "2", "3", "3"], "behind the begin of its first load");
    assert!(again.feed.state().topics().iter().all(|topic| topic.topic.former.is_empty()));
}

/// What happens next to the server or to the source.
#[derive(Clone, Debug)]
enum Act {
    /// A transaction commits.
    Write(Vec<u32>),
    /// So many messages reach the source.
    Feed(usize),
    /// The Kafka transaction is committed.
    Settle,
    /// The slot is confirmed as far as it may be.
    Confirm,
    /// The message of the list is written, if one is due.
    Emit,
    /// A message of a life before, or of somebody else.
    Stray,
    /// `kill -9`, or the end of the session for any other reason.
    Die,
    /// The server itself dies: of the slot's place only some older one is left.
    Crash(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let tables = proptest::sample::subsequence(vec![KEPT, REMOVED, ADDED], 0..=3);
    let act = prop_oneof![
        6 => tables.prop_map(Act::Write),
        8 => (1..6_usize).prop_map(Act::Feed),
        5 => Just(Act::Settle),
        4 => Just(Act::Confirm),
        4 => Just(Act::Emit),
        1 => Just(Act::Stray),
        2 => Just(Act::Die),
        1 => (0..9_usize).prop_map(Act::Crash),
    ];
    proptest::collection::vec(act, 1..80)
}

/// A server, a broker and a source that dies.
struct Everything {
    wal: Vec<Whole>,
    /// How many transactions the slot has left behind.
    slot: usize,
    /// Before this one the new publication was not there. None: the same publication, that was added to.
    created: Option<usize>,
    /// What is committed to Kafka.
    committed: (Vec<super::Sent>, State),
    world: World,
    /// What the session has not been sent yet.
    coming: std::collections::VecDeque<(u64, Vec<u8>)>,
    /// How many of the WAL's transactions the session has been handed.
    handed: usize,
    emitted: Option<u128>,
    ids: u128,
}

impl Everything {
    fn new(renamed: bool) -> Everything {
        let world = World::new(old_list(), FIRST);
        Everything {
            wal: Vec::new(),
            slot: 0,
            created: renamed.then_some(0),
            committed: (Vec::new(), old_list()),
            world,
            coming: Default::default(),
            handed: 0,
            emitted: None,
            ids: 0,
        }
    }

    fn is_new_list(&self) -> bool {
        self.committed.1.stream.publications == ["q"]
    }

    /// Step 0 again: from what is committed, with the slot where it stands or where the list says that it can be read from.
    fn begin(&mut self) {
        let (topic, state) = self.committed.clone();
        let since = state.stream.since.map_or(0, |since| since.0);
        let first = (0..).find(|index| start_of(*index) + 80 >= since).expect("the WAL is long enough");
        self.handed = self.slot.max(first);
        self.world = World::new(state, start_of(self.slot));
        self.world.topic.0 = topic;
        self.coming.clear();
        self.emitted = None;
    }

    fn feed(&mut self, messages: usize) {
        for _ in 0..messages {
            if self.coming.is_empty() && self.handed < self.wal.len() {
                let renamed = self.created.is_some() && self.is_new_list();
                assert!(!renamed || self.created <= Some(self.handed), "publication \"q\" does not exist");
                let carried: &[u32] = match (self.created, self.is_new_list()) {
                    (Some(_), true) => &[KEPT, ADDED],
                    (Some(_), false) => &[KEPT, REMOVED],
                    (None, _) => &[KEPT, REMOVED, ADDED],
                };
                self.coming.extend(sent(self.handed, &self.wal[self.handed], carried));
                self.handed += 1;
            }
            let Some((start, message)) = self.coming.pop_front() else { return };
            self.world.tell(start, &message);
            if self.world.feed.ending().is_some() {
                self.settle();
                return self.begin();
            }
        }
    }

    fn settle(&mut self) {
        self.world.feed.take_records();
        self.committed = (self.world.topic.0.clone(), self.world.feed.state().clone());
    }

    fn confirm(&mut self) {
        // As far as a committed record of this session says.
        let flushed = self.committed.1.stream.flushed.0.min(self.world.feed.received().0);
        let whole = (0..self.wal.len()).take_while(|index| start_of(*index) + 88 <= flushed).count();
        self.slot = self.slot.max(whole);
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Write(oids) => self.wal.push(Whole::Rows(oids.clone())),
            Act::Feed(messages) => self.feed(*messages),
            Act::Settle => self.settle(),
            Act::Confirm => self.confirm(),
            Act::Emit if !self.is_new_list() && self.emitted.is_none() => {
                self.ids += 1;
                let since = start_of(self.created.unwrap_or_default());
                self.world.feed.expect_list(ListId(self.ids), new_list(since, LoadMode::Merge));
                self.wal.push(Whole::List(self.ids));
                self.emitted = Some(self.ids);
            }
            Act::Emit => {}
            Act::Stray => self.wal.push(Whole::List(if self.emitted == Some(self.ids) { 0 } else { self.ids })),
            Act::Die => self.begin(),
            Act::Crash(back) => {
                self.slot = self.slot.saturating_sub(*back);
                self.begin();
            }
        }
    }

    fn finish(&mut self) {
        for _ in 0..6 {
            self.act(&Act::Emit);
            self.feed(10_000);
            self.settle();
            self.confirm();
        }
    }

    /// Where the list took effect: the transaction that the state says.
    fn change(&self) -> usize {
        let begin = self.committed.0.iter().find(|sent| sent.header("control") == Some("load_begin"));
        let commit = begin.expect("the list has changed").position().commit.0;
        (0..).find(|index| start_of(*index) + 80 == commit).expect("a transaction's commit")
    }
}

proptest! {
    /// Whoever dies whenever: up to the list's own commit the old list has decided, and from there on the new one, and each
    /// change stands once.
    #[test]
    fn each_change_stands_once_by_the_list_of_its_time(acts in acts(), renamed in any::<bool>()) {
        let mut all = Everything::new(renamed);
        for (n, act) in acts.iter().enumerate() {
            // Somewhere on the way the new publication is made.
            if n == acts.len() / 3 && renamed && !all.is_new_list() && all.emitted.is_none() {
                all.created = Some(all.wal.len());
            }
            if n >= acts.len() / 3 || !matches!(act, Act::Emit) {
                all.act(act);
            }
        }
        all.finish();
        prop_assert!(all.is_new_list());
        let change = all.change();
        for oid in [KEPT, REMOVED, ADDED] {
            let listed = |index: usize| match oid {
                KEPT => true,
                REMOVED => index < change,
                _ => index > change,
            };
            let written = all.wal.iter().enumerate().filter(|(index, whole)| {
                listed(*index) && matches!(whole, Whole::Rows(oids) if oids.contains(&oid))
            });
            let mut expected: Vec<usize> = written.map(|(index, _)| index).collect();
            let rows = all.committed.0.iter().filter(|sent| sent.topic == topic_of(oid) && sent.key.is_some());
            let mut found: Vec<usize> = rows.map(|sent| (sent.position().change.0 - FIRST) as usize / STEP as usize).collect();
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected, "{}", name(oid));
            for partition in 0..2 {
                let records: Vec<_> = all.committed.0.iter().filter(|sent| sent.topic == topic_of(oid) && sent.partition == partition).collect();
                prop_assert!(records.windows(2).all(|pair| pair[0].position() <= pair[1].position()));
                let seqs: Vec<_> = records.iter().map(|sent| sent.header("seq").expect("has one").parse::<usize>().expect("a number")).collect();
                prop_assert_eq!(&seqs, &(1..=records.len()).collect::<Vec<_>>());
                let first = records.first().and_then(|sent| sent.header("control"));
                prop_assert!(oid != ADDED || first == Some("load_begin"));
            }
        }
    }
}
