//! The plan against a table of numbers: whatever readers do with their claims, each row is read for good once.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use schemas::state::LoadTable;

use super::*;

/// Numbers below this may be keys.
const KEYS: u32 = 60;

fn key(n: u32) -> Vec<String> {
    vec![n.to_string()]
}

fn number(key: &Option<Vec<String>>) -> Option<u32> {
    key.as_ref().map(|texts| texts[0].parse().expect("a number"))
}

fn holds(range: &Range, n: u32) -> bool {
    number(&range.after).is_none_or(|after| n > after) && number(&range.upto).is_none_or(|upto| n <= upto)
}

fn load(oid: u32, done: Vec<Range>, rows_estimated: u64) -> Task {
    let done = LoadTable { done, rows_estimated, ..LoadTable::default() };
    let work = Work::Load { load: "l".into(), done, is_added: false };
    Task { oid, round: 0, name: TableName::new("public", format!("t{oid}")), work }
}

fn keys(oid: u32, count: usize) -> Task {
    let keys = (0..count).map(|n| format!("{{\"id\":{n}}}")).collect();
    Task { oid, round: 0, name: TableName::new("public", "k"), work: Work::Keys { load: None, keys } }
}

fn add_tables(plan: &mut Plan, count: u32, now: Instant) {
    for oid in 1..=count {
        plan.add(load(oid, vec![], 0), Readiness::Ready, now);
    }
}

fn range(part: &Part) -> &Range {
    match part {
        Part::Range(range) => range,
        Part::Keys(_) | Part::List { .. } => panic!("a range"),
    }
}

#[test]
fn rows_by_their_keys_that_no_chunk_takes_come_again_as_two() {
    let (mut plan, now) = (Plan::new(1), Instant::now());
    plan.add(keys(1, 3), Readiness::Ready, now);
    let claimed = plan.next(now).expect("all of them");
    plan.halve(claimed.claim);
    let halves = std::iter::from_fn(|| plan.next(now)).map(|claimed| match claimed.part {
        Part::Keys(keys) => keys,
        Part::Range(_) | Part::List { .. } => panic!("rows by their keys"),
    });
    assert_eq!(halves.collect::<Vec<_>>().concat(), ["{\"id\":0}", "{\"id\":1}", "{\"id\":2}"]);
    assert!(plan.next(now).is_none() && !plan.is_empty(), "both are held");
}

/// What happens to a claim.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Split,
    Read,
    Done,
    Again,
    Aside,
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Split),
        3 => Just(Fate::Read),
        4 => Just(Fate::Done),
        2 => Just(Fate::Again),
        1 => Just(Fate::Aside),
    ]
}

/// Some tables, what the stream's loop has recorded of each, and who holds what.
struct World {
    plan: Plan,
    rows: BTreeMap<u32, BTreeSet<u32>>,
    done: BTreeMap<u32, Vec<Range>>,
    held: Vec<Claimed>,
    now: Instant,
}

impl World {
    fn new(rows: Vec<BTreeSet<u32>>) -> World {
        let rows: BTreeMap<u32, BTreeSet<u32>> = (1..).zip(rows).collect();
        let done = rows.keys().map(|oid| (*oid, Vec::new())).collect();
        let mut world = World { plan: Plan::new(2), rows, done, held: Vec::new(), now: Instant::now() };
        world.begin();
        world
    }

    /// Another life: what is not recorded as done is to be read, and nobody holds anything.
    fn begin(&mut self) {
        self.plan = Plan::new(2);
        self.held.clear();
        for (oid, done) in &self.done {
            if !range::is_all(done) {
                self.plan.add(load(*oid, done.clone(), 0), Readiness::Ready, self.now);
            }
        }
    }

    /// The rows of a claim.
    fn within(&self, claimed: &Claimed) -> Vec<u32> {
        self.rows[&claimed.table.oid].iter().copied().filter(|n| holds(range(&claimed.part), *n)).collect()
    }

    fn take(&mut self) -> Option<()> {
        let claimed = self.plan.next(self.now)?;
        let oid = claimed.table.oid;
        if let Some(mut done) = claimed.unordered {
            // As the server would put them.
            done.sort_by_key(|range| number(&range.after));
            self.plan.ordered(claimed.claim, &done);
            return Some(());
        }
        for n in 0..=KEYS {
            let twice = self.held.iter().filter(|other| other.table.oid == oid && holds(range(&other.part), n)).count();
            let done = self.done[&oid].iter().any(|range| holds(range, n));
            assert!(!holds(range(&claimed.part), n) || (twice == 0 && !done), "{n} of {oid} is given out twice");
        }
        self.held.push(claimed);
        Some(())
    }

    fn meet(&mut self, which: usize, fate: Fate) {
        if self.held.is_empty() {
            return;
        }
        let place = which % self.held.len();
        let within = self.within(&self.held[place]);
        let claimed = &mut self.held[place];
        let claim = claimed.claim;
        match fate {
            Fate::Split | Fate::Read => {
                if within.is_empty() {
                    return;
                }
                let at = key(within[which % within.len()]);
                self.plan.split(claim, &at, None);
                let Part::Range(range) = &mut claimed.part else { panic!("a range") };
                range.upto = Some(at);
            }
            Fate::Done => {
                let claimed = self.held.remove(place);
                let oid = claimed.table.oid;
                range::add(self.done.get_mut(&oid).expect("one of ours"), range(&claimed.part).clone());
                let finished = self.plan.done(claim, within.len() as u64, None);
                assert_eq!(finished.is_some(), range::is_all(&self.done[&oid]));
            }
            Fate::Again => {
                self.held.remove(place);
                self.plan.again(claim);
            }
            Fate::Aside => {
                self.held.remove(place);
                self.plan.aside(claim, self.now);
            }
        }
    }
}

proptest! {
    /// Claims never overlap, nothing that is done is given out again, and in the end everything is done: also if
    /// everything begins anew somewhere on the way.
    #[test]
    fn each_row_is_read_for_good_once(
        rows in proptest::collection::vec(proptest::collection::btree_set(0..KEYS, 0..40), 1..4),
        steps in proptest::collection::vec((any::<usize>(), fates(), 0_u32..100), 0..200),
    ) {
        let mut world = World::new(rows);
        for (which, fate, turn) in steps {
            match turn {
                0..40 => drop(world.take()),
                40..97 => world.meet(which, fate),
                97..99 => world.now += ASIDE_MAX,
                _ => world.begin(),
            }
        }
        for _ in 0..10_000 {
            world.now += ASIDE_MAX;
            if world.take().is_none() && world.held.is_empty() {
                break;
            }
            while let Some(last) = world.held.len().checked_sub(1) {
                world.meet(0, Fate::Done);
                assert_eq!(world.held.len(), last);
            }
        }
        prop_assert!(world.plan.is_empty());
        prop_assert!(world.done.values().all(|done| range::is_all(done)), "{:?}", world.done);
    }
}

#[test]
fn two_readers_share_one_table_as_soon_as_it_is_split() {
    let now = Instant::now();
    let mut plan = Plan::new(2);
    plan.add(load(1, vec![], 0), Readiness::Ready, now);
    let first = plan.next(now).expect("the table");
    assert!(plan.next(now).is_none(), "nobody knows yet where the first ends");
    plan.split(first.claim, &key(10), Some(10));
    let second = plan.next(now).expect("the rest");
    assert_eq!(range(&second.part), &Range { after: Some(key(10)), upto: None });
    assert!(plan.done(first.claim, 10, None).is_none());
    let finished = plan.done(second.claim, 5, None).expect("the last of it");
    assert_eq!((finished.rows, plan.is_empty()), (15, true));
}

#[test]
fn what_is_given_back_is_joined_with_what_lies_beside_it() {
    let now = Instant::now();
    let mut plan = Plan::new(1);
    plan.add(load(1, vec![], 0), Readiness::Ready, now);
    let first = plan.next(now).expect("the table");
    plan.split(first.claim, &key(10), Some(10));
    plan.split(first.claim, &key(5), Some(5));
    plan.again(first.claim);
    let again = plan.next(now).expect("all of it");
    assert_eq!(range(&again.part), &Range::default());
}

#[test]
fn tables_come_in_turn_and_no_more_than_are_read_abreast() {
    let now = Instant::now();
    let mut plan = Plan::new(2);
    add_tables(&mut plan, 3, now);
    let mut order = Vec::new();
    for _ in 0..4 {
        let claimed = plan.next(now).expect("something is left");
        order.push(claimed.table.oid);
        plan.split(claimed.claim, &key(order.len() as u32), None);
    }
    assert_eq!(order, [1, 2, 1, 2]);
}

#[test]
fn a_table_that_cannot_be_read_now_holds_nobody_up() {
    let now = Instant::now();
    let mut plan = Plan::new(1);
    add_tables(&mut plan, 2, now);
    let first = plan.next(now).expect("the first");
    plan.aside(first.claim, now);
    assert_eq!(plan.next(now).expect("the second").table.oid, 2);
    assert_eq!(plan.wakes_at(), Some(now + ASIDE));
    let again = plan.next(now + ASIDE).expect("the first again");
    plan.aside(again.claim, now + ASIDE);
    assert_eq!(plan.wakes_at(), Some(now + ASIDE * 3), "a longer pause each time");
}

#[test]
fn a_table_that_is_gone_takes_nothing_with_it() {
    let now = Instant::now();
    let mut plan = Plan::new(2);
    add_tables(&mut plan, 2, now);
    let first = plan.next(now).expect("the first");
    assert_eq!(plan.forget(first.claim), Some((TableName::new("public", "t1"), true)));
    assert!(plan.done(first.claim, 1, None).is_none() && plan.forget(first.claim).is_none());
    assert_eq!(plan.next(now).expect("the second").table.oid, 2);
}

#[test]
fn a_load_that_is_given_up_is_read_no_more() {
    let now = Instant::now();
    let mut plan = Plan::new(2);
    plan.add(load(1, vec![], 0), Readiness::Ready, now);
    plan.add(keys(1, 3), Readiness::Ready, now);
    let rows = plan.next(now).expect("rows come first");
    assert!(matches!(rows.part, Part::Keys(_)));
    let table = plan.next(now).expect("the table");
    assert!(plan.wants(table.claim));
    plan.cancel("l");
    assert!(!plan.wants(table.claim));
    plan.again(table.claim);
    assert!(plan.next(now).is_none());
    assert!(!plan.done(rows.claim, 3, None).expect("the last of it").is_load);
}

#[test]
fn many_keys_are_read_in_pieces() {
    let now = Instant::now();
    let mut plan = Plan::new(1);
    plan.add(keys(1, KEYS_MAX + 1), Readiness::Ready, now);
    let count = |claimed: Claimed| match claimed.part {
        Part::Keys(keys) => keys.len(),
        Part::Range(_) | Part::List { .. } => panic!("keys"),
    };
    let pieces: Vec<_> = std::iter::from_fn(|| plan.next(now)).map(count).collect();
    assert_eq!(pieces, [KEYS_MAX, 1]);
}

fn listed(keys: &[&str], void: &[&str]) -> Part {
    let texts = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
    Part::List { keys: texts(keys), void: texts(void), rows: Vec::new() }
}

#[test]
fn of_a_list_the_rest_is_free_when_a_part_of_it_was_read() {
    let now = Instant::now();
    let mut plan = Plan::new(1);
    let work = Work::Keys { load: Some("l".into()), keys: ["a", "b", "c", "d"].map(str::to_owned).to_vec() };
    plan.add(Task { oid: 1, round: 0, name: TableName::new("public", "k"), work }, Readiness::Ready, now);
    let first = plan.next(now).expect("the list");
    plan.covered(first.claim, &listed(&["b", "d"], &["a"]), 2, None);
    let rest = plan.next(now).expect("the rest");
    assert_eq!(rest.part, listed(&["c"], &[]));
    plan.again(first.claim);
    let again = plan.next(now).expect("what was read in vain");
    assert_eq!(again.part, listed(&["b", "d", "a"], &[]), "whatever was found of them is found out anew");
    assert!(plan.done(rest.claim, 1, None).is_none());
    assert!(plan.done(again.claim, 2, None).is_some());
}

#[test]
fn a_load_waits_until_it_is_ready() {
    let now = Instant::now();
    let mut plan = Plan::new(1);
    let id = plan.add(load(1, vec![], 0), Readiness::Waiting, now);
    assert!(plan.next(now).is_none() && !plan.is_empty());
    plan.ready(id);
    assert!(plan.next(now).is_some());
}

#[test]
fn a_table_that_is_told_into_ranges_otherwise_is_read_anew() {
    let now = Instant::now();
    let mut plan = Plan::new(2);
    plan.add(load(1, vec![], 0), Readiness::Ready, now);
    let (first, whole) = (plan.next(now).expect("the table"), Part::Range(Range::default()));
    plan.covered(first.claim, &Part::Range(Range { after: None, upto: Some(key(3)) }), 3, Some("key 1"));
    let second = plan.next(now).expect("the rest");
    assert_eq!((second.table.ranges_of.as_deref(), second.table.done_of.as_deref()), (Some("key 1"), None));
    plan.done(first.claim, 3, Some("key 1"));
    plan.anew(second.claim, "key 2");
    let again = plan.next(now).expect("all of it");
    assert_eq!(again.part, whole);
    assert_eq!((again.table.ranges_of.as_deref(), again.table.done_of.as_deref()), (Some("key 2"), Some("key 1")));
    assert!(plan.done(second.claim, 3, Some("key 1")).is_none(), "it was of before");
    plan.elsewhere(again.claim, Some("key 3".into()));
    let last = plan.next(now).expect("all of it");
    assert_eq!((last.part, last.table.done_of.as_deref()), (whole, Some("key 3")));
}
