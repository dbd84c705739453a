//! DDL under way: what is followed, what stops, and what is decided again after a crash.

use schemas::state::ImprintColumn;

use super::*;
use crate::relation::NoKey;
use crate::watch::Table;

/// A feed whose server's catalog the test changes.
struct Altered {
    world: World,
    shown: Shown,
    on_rewrite: OnRewrite,
    lsn: u64,
}

impl Altered {
    /// One row of `users` is published.
    fn new(on_rewrite: OnRewrite, identity: char) -> Altered {
        let shown = Shown::default();
        let world = Altered::world(&shown, on_rewrite, state(), 100);
        let mut altered = Altered { world, shown, on_rewrite, lsn: 200 };
        altered.insert(&users(identity)).expect("nothing has changed");
        altered
    }

    fn world(shown: &Shown, on_rewrite: OnRewrite, state: State, confirmed: u64) -> World {
        let reselected = Reselected::Seen { values: None, upto: Lsn(300) };
        let server = Server { reselected, too_early: 0, shown: Arc::clone(shown) };
        World::told(on_rewrite, server, state, confirmed)
    }

    /// The next session, after whatever the feed has done was committed, or without that.
    fn restart(&mut self, state: State) {
        self.world = Altered::world(&self.shown, self.on_rewrite, state, 100);
        // What is remembered must come again.
        for sent in self.world.feed.state().stream.history.clone() {
            self.world.tell(0, &begin(sent.0.0, sent.1));
            self.world.tell(0, &end(sent.0.0));
        }
    }

    fn alter(&self, change: impl FnOnce(&mut Table)) {
        let mut shown = self.shown.lock().expect("nobody panics with it");
        change(shown.table.as_mut().expect("it was not dropped"));
    }

    /// A transaction that describes the relation and inserts a row.
    fn insert(&mut self, described: &Described) -> Result<(), Error> {
        self.lsn += 100;
        let cells: Vec<_> = described.columns.iter().map(|_| Some("1")).collect();
        let row = encode(&Message::Insert { oid: USERS, new: super::cells(&cells) });
        let messages = [(0, begin(self.lsn, self.lsn as u32)), (0, relation(described)), (self.lsn - 50, row)];
        for (start, message) in messages.into_iter().chain([(0, end(self.lsn))]) {
            assert_eq!(self.world.say(start, &message)?, Taken::Whole);
            if self.world.feed.ending().is_some() {
                break;
            }
        }
        Ok(())
    }

    /// The watch looks, and what it found gets its place.
    fn watch(&mut self) -> Result<Vec<u32>, Error> {
        let table = self.shown.lock().expect("nobody panics with it").table.clone();
        self.world.feed.watched(watch::tests::seen(table.expect("it was not dropped")))
    }

    fn notice(&mut self, oid: u32) {
        self.lsn += 100;
        let message = message(self.lsn - 8, "tributary/s", &notice(oid));
        self.world.tell(0, &begin(self.lsn, self.lsn as u32));
        self.world.tell(self.lsn - 16, &message);
        if self.world.feed.ending().is_none() {
            self.world.tell(0, &end(self.lsn));
        }
    }

    /// The schema events so far, and whether each says that rows changed.
    fn schemas(&self) -> Vec<bool> {
        let rewritten = |sent: &&Sent| match sent.event().control {
            Some(Control::Schema { rows_rewritten, .. }) => rows_rewritten,
            other => panic!("not a schema event: {other:?}"),
        };
        self.world.controls("schema").iter().filter(|sent| sent.partition == 0).map(rewritten).collect()
    }

    fn imprint(&self) -> Imprint {
        self.world.feed.state().table(7).expect("ours").imprint.clone().expect("it was looked at")
    }
}

/// `ALTER TABLE users ADD age int`, with a value in the rows that are there or without.
fn add_age(table: &mut Table, given: bool) {
    table.imprint.last_column = 4;
    table.imprint.columns.push(ImprintColumn(4, "age".into(), 23, 23, -1, 800));
    table.given.extend(given.then_some(4));
}

fn with_age() -> Described {
    let mut described = users('d');
    described.columns.push(pgoutput::Column { identity: false, name: "age".into(), type_oid: 23, modifier: -1 });
    described
}

/// The watch's answer can wait behind a relation of the stream that was looked at later.
#[test]
fn what_the_watch_saw_before_the_stream_moved_on_is_out_of_date() {
    let mut altered = Altered::new(OnRewrite::Stop, 'd');
    let stale = watch::tests::seen(altered.shown.lock().expect("nobody panics with it").table.clone().expect("there"));
    let drop_bio = |columns: &mut Vec<ImprintColumn>| columns.retain(|column| column.1 != "bio");
    altered.alter(|table| drop_bio(&mut table.imprint.columns));
    let mut described = users('d');
    described.columns.retain(|column| column.name != "bio");
    altered.insert(&described).expect("a dropped column is followed");
    let imprint = altered.imprint();
    let places = altered.world.feed.watched(watch::Seen { at: Lsn(0), ..stale }).expect("nothing is wrong");
    assert_eq!((places, altered.imprint()), (vec![], imprint));
}

#[test]
fn what_changes_no_row_is_followed() {
    let mut altered = Altered::new(OnRewrite::Stop, 'd');
    altered.alter(|table| add_age(table, false));
    altered.insert(&with_age()).expect("nobody has to decide");
    assert_eq!(altered.schemas(), [false, false]);
    assert_eq!(altered.imprint().columns.len(), 4);
    altered.insert(&with_age()).expect("nothing has changed");
    assert_eq!(altered.schemas().len(), 2);
}

#[test]
fn a_person_decides_about_rows_that_changed() {
    let mut altered = Altered::new(OnRewrite::Stop, 'd');
    let before = altered.world.feed.state().clone();
    altered.alter(|table| add_age(table, true));
    for _ in 0..2 {
        let stopped = altered.insert(&with_age()).expect_err("old rows have a value that was not sent");
        assert!(matches!(&stopped, Error::Rewritten { what, .. } if what.contains("age")), "{stopped}");
        assert!(altered.world.controls("schema").len() <= 2, "nothing was announced");
        altered.restart(before.clone());
    }
    assert!(altered.watch().is_err(), "and so does the watch, without any row");

    altered.on_rewrite = OnRewrite::Continue;
    altered.restart(before);
    altered.insert(&with_age()).expect("the person has decided");
    assert_eq!(altered.schemas(), [true]);
    altered.on_rewrite = OnRewrite::Stop;
    altered.restart(altered.world.feed.state().clone());
    altered.insert(&with_age()).expect("it was decided once and for all");
    assert!(altered.watch().expect("decided").is_empty());
}

#[test]
fn a_table_is_loaded_again_at_the_place_of_the_change() {
    let mut altered = Altered::new(OnRewrite::Reload, 'd');
    let before = altered.world.feed.state().clone();
    altered.alter(|table| add_age(table, true));
    let mut ids = Vec::new();
    for _ in 0..2 {
        altered.insert(&with_age()).expect("it is loaded again");
        assert!(altered.world.feed.ending().is_some(), "a reader is needed");
        let begun = altered.world.controls("load_begin");
        let schema = *altered.world.controls("schema").last().expect("the new shape");
        assert_eq!((begun.len(), begun[0].position()), (2, schema.position()));
        let Some(Control::LoadBegin { load, mode, .. }) = begun[0].event().control else { panic!("a beginning") };
        assert_eq!(mode, schemas::event::LoadMode::Merge);
        assert_eq!(altered.world.feed.state().loads().map(|(id, _)| id).collect::<Vec<_>>(), [&load]);
        ids.push(load);
        // Killed before it was committed: the same comes of it again.
        altered.restart(before.clone());
        altered.lsn -= 100;
    }
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn rows_that_were_written_anew_under_the_same_description_are_noticed() {
    let mut altered = Altered::new(OnRewrite::Continue, 'd');
    altered.alter(|table| {
        table.files[0].file = schemas::state::ImprintFile(7, 80, 81);
        table.imprint.columns[1].5 = 800;
    });
    altered.insert(&users('d')).expect("told to go on");
    assert_eq!(altered.schemas(), [false, true]);
    assert_eq!(altered.world.feed.take_remarks().len(), 1);
}

#[test]
fn what_the_watch_finds_gets_a_place_of_its_own() {
    let mut altered = Altered::new(OnRewrite::Continue, 'd');
    altered.alter(|table| add_age(table, false));
    assert!(altered.watch().expect("harmless").is_empty());
    assert_eq!(altered.imprint().columns.len(), 4, "remembered at once");

    altered.alter(|table| table.imprint.entry = Some(99));
    altered.notice(7);
    assert_eq!(altered.schemas(), [false], "a stranger's message finds nothing");
    assert_eq!(altered.watch().expect("told to go on"), [7]);
    altered.notice(7);
    assert_eq!(altered.schemas(), [false, true]);
    assert_eq!(altered.imprint().entry, Some(99));
    altered.notice(7);
    assert_eq!(altered.schemas().len(), 2);
    altered.insert(&users('d')).expect("known");
    assert_eq!(altered.schemas().len(), 2);
}

#[test]
fn a_load_that_is_under_way_begins_anew() {
    let mut altered = Altered::new(OnRewrite::Stop, 'd');
    altered.world.feed.begin_load("l", LoadMode::First, &[(7, 10)], 1, &mut altered.world.topic).expect("begun");
    altered.alter(|table| add_age(table, true));
    altered.insert(&with_age()).expect("what was read is read again");
    let loads: Vec<_> = altered.world.feed.state().loads().map(|(id, _)| id.to_owned()).collect();
    assert!(loads.len() == 1 && loads[0] != "l", "{loads:?}");
    assert!(altered.world.feed.state().load_table("l", 7).is_none());
}

#[test]
fn what_takes_changes_out_of_the_stream_stops_it() {
    let mut altered = Altered::new(OnRewrite::Continue, 'd');
    altered.alter(|table| table.is_published = false);
    let stopped = altered.insert(&users('d')).expect_err("changes are missing");
    assert!(matches!(stopped, Error::Unsent(_)));
}

/// The catalog of now publishes the column, the stream of then does not.
#[test]
fn a_column_that_was_out_of_the_list_for_a_while_is_noticed() {
    let mut altered = Altered::new(OnRewrite::Continue, 'd');
    let mut narrow = users('d');
    narrow.columns.pop();
    altered.alter(|table| table.imprint.columns[1].5 = 800);
    altered.insert(&narrow).expect("told to go on");
    assert_eq!(altered.schemas(), [false, true]);
}

#[test]
fn a_table_that_lost_its_key_goes_on_when_the_same_key_is_back() {
    let mut altered = Altered::new(OnRewrite::Stop, 'd');
    let before = altered.world.feed.state().clone();
    let mut keyless = users('d');
    keyless.columns[0].identity = false;
    altered.alter(|table| (table.keys, table.has_key) = (vec![], false));
    altered.watch().expect("a warning at most");
    let stopped = altered.insert(&keyless).expect_err("no key");
    assert!(matches!(stopped, Error::NoKey { cause: NoKey::Lost(ref key), .. } if key == "id"), "{stopped}");
    altered.restart(before);
    altered.alter(|table| table.keys = vec![vec![1]]);
    altered.insert(&keyless).expect("the key names these rows by now");
    assert_eq!(altered.world.rows().last().expect("a row").1, r#"{"id":1}"#);
}

/// A commit is in the stream a moment before others see it, and for as long as a synchronous standby is away.
#[test]
fn a_relation_waits_until_the_catalog_shows_what_its_transaction_did() {
    let mut altered = Altered::new(OnRewrite::Stop, 'd');
    let mut keyless = users('d');
    keyless.columns[0].identity = false;
    let unseen_from = |altered: &Altered, xid| altered.shown.lock().expect("nobody panics with it").unseen_from = xid;
    unseen_from(&altered, 400);
    altered.world.tell(0, &begin(400, 400));
    for _ in 0..2 {
        assert_eq!(altered.world.say(0, &relation(&keyless)).expect("it may be asked for again"), Taken::NotYet);
    }
    altered.alter(|table| (table.keys, table.has_key) = (vec![], false));
    unseen_from(&altered, 401);
    let stopped = altered.world.say(0, &relation(&keyless)).expect_err("no key");
    assert!(matches!(stopped, Error::NoKey { cause: NoKey::Lost(_), .. }), "{stopped}");
}

#[test]
fn under_full_the_published_key_stays_or_the_source_stops() {
    let mut altered = Altered::new(OnRewrite::Stop, 'f');
    altered.alter(|table| (table.identity, table.keys) = ('f', vec![vec![2], vec![1]]));
    altered.alter(|table| table.imprint.key = vec![2]);
    {
        let mut shown = altered.shown.lock().expect("nobody panics with it");
        shown.details.primary_key = vec!["name".into()];
    }
    altered.watch().expect("the former key still names rows");
    altered.insert(&users('f')).expect("so it goes on");
    assert_eq!(altered.world.rows().last().expect("a row").1, r#"{"id":1}"#);
    altered.alter(|table| table.keys = vec![vec![2]]);
    let stopped = altered.watch().expect_err("so does the watch");
    assert!(matches!(stopped, Error::NoKey { cause: NoKey::Lost(_), .. }), "{stopped}");
    let stopped = altered.insert(&users('f')).expect_err("since when rows have the other key is not known");
    assert!(matches!(stopped, Error::NoKey { cause: NoKey::Lost(_), .. }), "{stopped}");
}

#[test]
fn under_full_a_key_may_be_renamed() {
    let mut altered = Altered::new(OnRewrite::Stop, 'f');
    altered.alter(|table| table.imprint.columns[0].1 = "ident".into());
    {
        let mut shown = altered.shown.lock().expect("nobody panics with it");
        shown.details.primary_key = vec!["ident".into()];
        shown.details.canonical.insert("ident".into(), Canonical::Same);
    }
    // Rows of before the change, after it was made.
    altered.insert(&users('f')).expect("by its name of then");
    let mut renamed = users('f');
    renamed.columns[0].name = "ident".into();
    altered.insert(&renamed).expect("by its name of now");
    let keys: Vec<_> = altered.world.rows().into_iter().map(|(_, key, _)| key).collect();
    assert_eq!(keys, [r#"{"id":1}"#, r#"{"id":1}"#, r#"{"ident":1}"#]);
    assert_eq!(altered.imprint().key, [1]);
}

#[test]
fn a_table_that_is_gone_by_now_is_read_as_it_was() {
    for identity in ['d', 'f'] {
        let mut altered = Altered::new(OnRewrite::Stop, identity);
        {
            let mut shown = altered.shown.lock().expect("nobody panics with it");
            shown.table = None;
            // Its types went with it, and the catalog has no key any more.
            shown.details = Details::default();
            shown.details.type_names.insert((25, -1), "???".into());
        }
        let mut changed = users(identity);
        changed.columns.pop();
        for described in [users(identity), changed] {
            altered.insert(&described).expect("what was known is enough");
            assert_eq!(altered.world.rows().last().expect("a row").1, r#"{"id":1}"#);
        }
    }
}

#[test]
fn a_key_that_would_go_to_other_partitions_stops() {
    let mut altered = Altered::new(OnRewrite::Continue, 'd');
    altered.shown.lock().expect("nobody panics with it").details.canonical.remove("id");
    let stopped = altered.insert(&users('d')).expect_err("its collation is another");
    assert!(matches!(stopped, Error::Rerouted { .. }));

    let mut altered = Altered::new(OnRewrite::Continue, 'd');
    altered.alter(|table| (table.imprint.columns[0].2, table.imprint.columns[0].3) = (25, 25));
    let stopped = altered.watch().expect_err("its texts are others");
    assert!(matches!(stopped, Error::Rerouted { .. }));
}
