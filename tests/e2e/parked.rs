//! What the target does not take: values that rows hand to each other in other partitions, and what a person settles.

use std::time::Duration;

use harness::World;
use harness::process::{Output, Part, Tributary};
use harness::servers::Role;
use harness::table::Table;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio_postgres::Client;

const READY_WITHIN: Duration = Duration::from_secs(90);
/// How long it may take after the last event until all that stood still has gone on.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// One holder for each seat, and a note that is not in the stream unless it is changed.
fn seats() -> Table {
    Table::new("public.seats", &["id"], "id bigint PRIMARY KEY, holder text UNIQUE, note text")
        .after("ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL")
}

/// A transaction in which two seats exchange their holders.
fn exchange(a: i64, b: i64) -> String {
    format!(
        "BEGIN; CREATE TEMP TABLE h ON COMMIT DROP AS SELECT id, holder FROM seats WHERE id IN ({a}, {b});
         UPDATE seats SET holder = NULL WHERE id = {a};
         UPDATE seats SET holder = (SELECT holder FROM h WHERE id = {a}) WHERE id = {b};
         UPDATE seats SET holder = (SELECT holder FROM h WHERE id = {b}) WHERE id = {a}; COMMIT"
    )
}

/// A transaction that hands holders round. `ids` are the seats that there are.
fn hand_round(random: &mut ChaCha8Rng, ids: &mut Vec<i64>, fresh: &mut i64) -> String {
    let mut some = ids.clone();
    let mut draw = || some.swap_remove(random.random_range(0..some.len()));
    let (a, b, c) = (draw(), draw(), draw());
    match random.random_range(0..10) {
        // Two seats exchange their holders, or three.
        0..4 => exchange(a, b),
        4..6 => format!(
            "BEGIN; CREATE TEMP TABLE h ON COMMIT DROP AS SELECT id, holder FROM seats WHERE id IN ({a}, {b}, {c});
             UPDATE seats SET holder = NULL WHERE id IN ({a}, {b}, {c});
             UPDATE seats SET holder = (SELECT holder FROM h WHERE id = {a}) WHERE id = {b};
             UPDATE seats SET holder = (SELECT holder FROM h WHERE id = {b}) WHERE id = {c};
             UPDATE seats SET holder = (SELECT holder FROM h WHERE id = {c}) WHERE id = {a}; COMMIT"
        ),
        // One goes, and another has its holder.
        6..8 => {
            *fresh += 1;
            ids.retain(|id| *id != a);
            ids.push(*fresh);
            format!(
                "BEGIN; CREATE TEMP TABLE h ON COMMIT DROP AS SELECT holder FROM seats WHERE id = {a};
                 DELETE FROM seats WHERE id = {a};
                 INSERT INTO seats SELECT {fresh}, holder, repeat('note {fresh} ', 300) FROM h; COMMIT"
            )
        }
        // It is called otherwise.
        8 => {
            *fresh += 1;
            ids.retain(|id| *id != a);
            ids.push(*fresh);
            format!("UPDATE seats SET id = {fresh} WHERE id = {a}")
        }
        _ => format!("UPDATE seats SET note = repeat('another {a} ', 300) WHERE id = {a}"),
    }
}

/// Unique values pass from row to row in other partitions, in circles too, while the sink dies: in the end nothing stands still.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_rows_hand_to_each_other_arrive_in_every_partition() {
    let mut world = World::builder().table(seats()).start().await;
    world.expect_log("parked an event");
    // Two partitions that are at each other's values at the same time.
    world.expect_log("deadlock detected");
    // Small batches: so partitions are far apart.
    world.configuration.set("groups.rdb.batch_rows_max", 20);
    world
        .in_source(
            "INSERT INTO seats SELECT i, 'holder ' || i, repeat('note ' || i, 300) FROM generate_series(1, 60) i",
        )
        .await;
    let mut source = world.start(Part::Source);
    let mut sink = world.start(Part::Sink);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    let (mut ids, mut fresh) = ((1..=60).collect::<Vec<i64>>(), 1_000);
    let client = world.source(Role::Superuser).await;
    for round in 0..6 {
        for _ in 0..250 {
            let sql = hand_round(&mut random, &mut ids, &mut fresh);
            client.batch_execute(&sql).await.unwrap_or_else(|cause| panic!("{sql}: {cause}"));
        }
        if round % 2 == 0 {
            sink.kill9().await.expect("it is killed");
            sink.restart().expect("it starts again");
        }
    }
    until_nothing_stands_still(&world).await;
    // And with nothing behind that would free a value: each of two rows has what the other is to get.
    for pair in ids.chunks(2) {
        client.batch_execute(&exchange(pair[0], pair[1])).await.expect("they exchange");
    }
    until_nothing_stands_still(&world).await;
    let parked = sink.log().matches("parked an event").count();
    println!("{parked} events were set aside");
    assert!(parked > 0, "nothing was ever in the way, so nothing is proven");
    world.until_equal().await;
    world.check_nothing_parked(&["rdb"]).await;
    sink.stop().await.expect("it ends");
    source.stop().await.expect("it ends");
    world.finish().await;
}

async fn until_nothing_stands_still(world: &World) {
    let (source, target) = (world.source(Role::Superuser).await, world.target(Role::Superuser).await);
    let rows = "SELECT md5(string_agg(seats::text, ' ' ORDER BY id)) FROM seats";
    world
        .until("both sides are equal and nothing stands still", SETTLED_WITHIN, async || {
            let ask = async |client: &Client, sql: &str| client.query_one(sql, &[]).await.map_err(|it| it.to_string());
            let left: i64 = ask(&target, "SELECT count(*) FROM tributary.parked").await?.get(0);
            let (here, there) = (ask(&source, rows).await?, ask(&target, rows).await?);
            let is_equal = here.get::<_, Option<String>>(0) == there.get::<_, Option<String>>(0);
            if left == 0 && is_equal { Ok(()) } else { Err(format!("{left} parked, equal: {is_equal}")) }
        })
        .await;
}

fn users() -> Table {
    Table::new("public.users", &["id"], "id bigint PRIMARY KEY, name text, note text")
}

/// A world in which the target takes no name that is 'bad', and rows that were copied.
async fn picky() -> (World, Tributary) {
    let mut world = World::builder().table(users()).start().await;
    world.expect_log("parked an event");
    world.expect_log("can never apply");
    world.in_source("INSERT INTO users SELECT i, 'u' || i, 'n' FROM generate_series(1, 50) i").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    refuse_bad(&world).await;
    (world, run)
}

async fn refuse_bad(world: &World) {
    world.in_target("ALTER TABLE users ADD CONSTRAINT picky CHECK (name <> 'bad')").await;
}

/// Updates a row, one event after the other, until so many events of it are parked.
async fn park(world: &World, id: i64, names: &[&str]) {
    let target = world.target(Role::Superuser).await;
    for (n, name) in names.iter().enumerate() {
        world.in_source(&format!("UPDATE users SET name = '{name}' WHERE id = {id}")).await;
        world
            .until("it is set aside", READY_WITHIN, async || {
                let sql = "SELECT count(*) FROM tributary.parked WHERE key = $1";
                let row = target.query_one(sql, &[&format!(r#"{{"id":{id}}}"#)]).await;
                let count: i64 = row.map_err(|cause| cause.to_string())?.get(0);
                if count == n as i64 + 1 { Ok(()) } else { Err(format!("{count} are")) }
            })
            .await;
    }
}

/// Where the events of a row are parked.
async fn places(world: &World, id: i64) -> Vec<String> {
    let list = world.command(&["dlq", "list", "--json"]).await;
    let list: serde_json::Value = serde_json::from_str(&list.stdout).expect("JSON");
    let events = list["events"].as_array().expect("a list").iter();
    let of_row = events.filter(|event| event["key"] == format!(r#"{{"id":{id}}}"#));
    of_row.map(|event| event["place"].as_str().expect("a place").to_owned()).collect()
}

async fn settle(world: &World, arguments: &[&str]) -> Output {
    world.command(&[&["dlq"], arguments].concat()).await
}

/// The sink goes by what it knows of the target's columns: if that is not so any more, it finds out before it sets anything aside.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_was_altered_takes_what_fits_by_now() {
    let mut world =
        World::builder().table(Table::new("public.sizes", &["id"], "id bigint PRIMARY KEY, size int")).start().await;
    world.in_target("ALTER TABLE sizes ALTER size TYPE smallint").await;
    world.in_source("INSERT INTO sizes SELECT i, i FROM generate_series(1, 50) i").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    world.in_target("ALTER TABLE sizes ALTER size TYPE bigint").await;
    world.in_source("UPDATE sizes SET size = 100000 + id WHERE id > 20").await;
    world.until_equal().await;
    world.check_nothing_parked(&["rdb"]).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// Rounding is silent, so a column that would round is told of before anything is applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_would_round_is_refused_with_the_statement() {
    let columns = "id bigint PRIMARY KEY, amount numeric(12,4), at timestamp(6)";
    let mut world = World::builder().table(Table::new("public.sums", &["id"], columns)).start().await;
    world.expect_log("ERROR");
    world.in_target("ALTER TABLE sums ALTER amount TYPE numeric(12,2), ALTER at TYPE date").await;
    world.in_source("INSERT INTO sums VALUES (1, 1.2345, now())").await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    let mut sink = world.start(Part::Sink);
    let status = sink.ends(READY_WITHIN).await.expect("it ends by itself");
    assert_eq!(status.code(), Some(2), "{}", sink.tail());
    for part in
        ["ALTER COLUMN \"amount\" TYPE numeric(12,4)", "ALTER COLUMN \"at\" TYPE timestamp(6) without time zone"]
    {
        assert!(sink.log().contains(part), "{part}\n{}", sink.log());
    }
    let target = world.target(Role::Superuser).await;
    let rows: i64 = target.query_one("SELECT count(*) FROM sums", &[]).await.expect("it answers").get(0);
    assert_eq!(rows, 0, "nothing was rounded");
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// Where equal keys can differ in text all rows of a table stand still as one, in their order: an answer about one of them
/// takes nothing away, and an event that can never apply holds up the others until a person settles it.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_stand_still_as_one_go_on_in_their_order() {
    let mut world =
        World::builder().table(Table::new("public.docs", &["doc"], "doc jsonb PRIMARY KEY, n int")).start().await;
    world.expect_log("parked an event");
    world.expect_log("can never apply");
    world.in_source("INSERT INTO docs SELECT to_jsonb(i), i FROM generate_series(1, 20) i").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.until_equal().await;
    world.in_target("ALTER TABLE docs ADD CONSTRAINT lucky CHECK (n <> 13000)").await;
    let target = world.target(Role::Superuser).await;
    let until_parked = async |count: i64| {
        world
            .until("events are set aside", READY_WITHIN, async || {
                let row = target.query_one("SELECT count(*) FROM tributary.parked", &[]).await;
                let parked: i64 = row.map_err(|cause| cause.to_string())?.get(0);
                if parked == count { Ok(()) } else { Err(format!("{parked} of {count}")) }
            })
            .await;
    };
    world.in_source("UPDATE docs SET n = 13000 WHERE doc = '3'").await;
    until_parked(1).await;
    world.in_source("UPDATE docs SET n = 5000 WHERE doc = '5'").await;
    world.in_source("UPDATE docs SET n = 7000 WHERE doc = '7'").await;
    until_parked(3).await;
    let ordered = world.command(&["snapshot", "start", "public.docs", "--key", "7"]).await;
    assert_eq!(ordered.code, Some(0), "{ordered:?}");
    until_parked(4).await;
    let refused = settle(&world, &["resync", "--all"]).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("stand still as one"), "{refused:?}");
    let refused = settle(&world, &["retry", "--all"]).await;
    assert!(refused.code == Some(1) && refused.stdout.contains("lucky"), "{refused:?}");
    world.in_target("ALTER TABLE docs DROP CONSTRAINT lucky").await;
    let applied = settle(&world, &["retry", "--all"]).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    world.until_equal().await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// What concerns many rows is no matter of single rows: somebody has to look.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_stops_where_more_is_set_aside_than_may_be() {
    let (mut world, mut run) = picky().await;
    run.stop().await.expect("it ends");
    world.expect_log("ERROR");
    world.configuration.set("groups.rdb.parked_rows_max", 10);
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    let mut sink = world.start(Part::Sink);
    park(&world, 7, &["bad"]).await;
    assert!(sink.ended().is_none(), "one is no reason");
    world.in_source("UPDATE users SET name = 'bad' WHERE id > 20").await;
    let status = sink.ends(READY_WITHIN).await.expect("it ends by itself");
    assert_eq!(status.code(), Some(2), "{}", sink.tail());
    assert!(sink.log().contains("has set aside more than 10 events"), "{}", sink.tail());
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// Tried again once the cause is mended, fetched anew, or given up: each leaves the right row, and the key goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_settles_what_was_set_aside() {
    let (world, mut run) = picky().await;

    // Too early, and then with the cause mended.
    park(&world, 7, &["bad", "bad"]).await;
    let place = places(&world, 7).await[0].clone();
    let refused = settle(&world, &["retry", &place]).await;
    assert!(refused.code == Some(1) && refused.stdout.contains("picky"), "{refused:?}");
    let meant = settle(&world, &["retry", "--all", "--dry-run"]).await;
    assert!(meant.code == Some(0) && meant.stdout.contains("2 events would be meant"), "{meant:?}");
    world.in_target("ALTER TABLE users DROP CONSTRAINT picky").await;
    let applied = settle(&world, &["retry", "--all", "--table", "public.users"]).await;
    assert!(applied.code == Some(0) && applied.stdout.contains("nothing is parked"), "{applied:?}");
    world.until_equal().await;
    world.in_source("UPDATE users SET name = 'on it goes' WHERE id = 7").await;
    world.until_equal().await;

    // As the rows are by now: one is another, one is gone.
    refuse_bad(&world).await;
    park(&world, 8, &["bad", "good"]).await;
    park(&world, 9, &["bad"]).await;
    world.in_source("DELETE FROM users WHERE id = 9").await;
    let fetched = settle(&world, &["resync", "--all"]).await;
    assert_eq!(fetched.code, Some(0), "{fetched:?}\n{}", run.tail());
    world.until_equal().await;

    // Given up: what stood behind it goes on.
    park(&world, 10, &["bad", "fine"]).await;
    let place = places(&world, 10).await[0].clone();
    let given_up = settle(&world, &["discard", &place, "--json"]).await;
    assert_eq!(given_up.code, Some(0), "{given_up:?}");
    world.until_equal().await;

    // And what is alone leaves the row as it stands.
    park(&world, 11, &["bad"]).await;
    let place = places(&world, 11).await[0].clone();
    assert_eq!(settle(&world, &["discard", &place]).await.code, Some(0));
    let target = world.target(Role::Superuser).await;
    let name: String = target.query_one("SELECT name FROM users WHERE id = 11", &[]).await.expect("a row").get(0);
    assert_eq!(name, "u11");
    world.in_source("UPDATE users SET name = 'again' WHERE id = 11").await;
    world.until_equal().await;

    let gone = settle(&world, &["retry", &place]).await;
    assert!(gone.code == Some(2) && gone.stderr.contains("nothing is parked at"), "{gone:?}");
    let nothing = settle(&world, &["discard", "--all"]).await;
    assert!(nothing.code == Some(0) && nothing.stdout.contains("Nothing is parked"), "{nothing:?}");
    run.stop().await.expect("it ends");
    world.finish().await;
}
