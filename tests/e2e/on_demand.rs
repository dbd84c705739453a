//! Loads on demand while the source streams: tables again, ranges, lists of keys; paused, resumed, cancelled; and whatever
//! strangers write into the stream.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::World;
use harness::oracle::audit;
use harness::oracle::topic::Record;
use harness::process::{Output, Part, Tributary};
use harness::servers::Role;
use harness::table::Table;
use harness::workload::{self, Pace, Shape, Workload};

use super::lists::as_owner;

const WITHIN: Duration = Duration::from_secs(90);

const PACE: Pace = Pace { writers: 3, transactions_per_second: 40 };

fn write(world: &World, shapes: &[Shape]) -> Workload {
    Workload::start(world.source_address(), &world.source_database(), world.seed, PACE, shapes)
}

/// A world whose tables hold rows.
async fn filled(shapes: &[Shape], rows: u32) -> World {
    let world = World::builder().tables(workload::tables_of(shapes)).start().await;
    let source = world.source(Role::Superuser).await;
    workload::fill(&source, world.seed, shapes, rows).await.expect("the tables take rows");
    world
}

async fn start(world: &mut World, part: Part) -> Tributary {
    let mut process = world.start(part);
    process.ready(WITHIN).await.expect("it streams");
    process
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|fault| panic!("{fault}: {output:?}"))
}

/// Orders something, and returns the ids of the loads that the source has taken up.
async fn order(world: &World, arguments: &[&str]) -> Vec<String> {
    let all: Vec<&str> = ["snapshot", "start"].iter().chain(arguments).chain(&["--json"]).copied().collect();
    let output = world.command(&all).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let ordered = json(&output);
    let ordered = ordered["loads"].as_array().expect("a list of loads");
    assert!(ordered.iter().all(|one| one["taken_up"] == true), "{output:?}");
    ordered.iter().map(|one| one["load"].as_str().expect("its id").to_owned()).collect()
}

/// The state of a table as `snapshot status` tells it, and the loads that are under way.
async fn status(world: &World, table: &Table) -> (String, Vec<String>) {
    let output = world.command(&["snapshot", "status", "--json"]).await;
    let report = json(&output);
    let tables = report["tables"].as_array().expect("a list of tables").clone();
    let one = tables.iter().find(|one| one["table"] == table.name.to_string()).expect("the table is told");
    let loads = one["loads"].as_array().expect("a list of loads");
    let id = |load: &serde_json::Value| load["load"].as_str().expect("its id").to_owned();
    (one["load"].as_str().expect("a state").to_owned(), loads.iter().map(id).collect())
}

async fn until_status(world: &World, table: &Table, wanted: impl Fn(&str, &[String]) -> bool) {
    let what = format!("{} is where it should be", table.name);
    world
        .until(&what, WITHIN, async || {
            let (state, loads) = status(world, table).await;
            if wanted(&state, &loads) { Ok(()) } else { Err(format!("{state} {loads:?}")) }
        })
        .await;
}

/// No load of the table is under way. Where no sink runs, its group is behind for ever.
async fn until_loaded(world: &World, table: &Table) {
    until_status(world, table, |state, loads| matches!(state, "live" | "catching_up") && loads.is_empty()).await;
}

/// Rows were deleted and others added in the target behind the sink's back. In place of what was there the table is equal
/// again; laid over it the deleted ones are back and the others stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_loaded_again_heals_a_target() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let mut world = filled(&[accounts.clone(), people.clone()], 200).await;
    let mut source = start(&mut world, Part::Source).await;
    let mut sink = start(&mut world, Part::Sink).await;
    world.until_equal().await;
    world
        .in_target(
            "DELETE FROM accounts WHERE id % 3 = 0; INSERT INTO accounts (id, owner) VALUES (100001, 'extra'), (100002, 'extra');
             DELETE FROM people WHERE length(name) % 2 = 0; INSERT INTO people (email, name) VALUES ('extra', 'extra')",
        )
        .await;
    assert!(world.difference().await.is_err(), "the target differs");

    order(&world, &["public.people", "--mode", "merge"]).await;
    world
        .until("but for the extra row people are equal", WITHIN, async || {
            let fault = world.difference().await.err().unwrap_or_default();
            let extra =
                world.target(Role::Superuser).await.query("SELECT FROM people WHERE email = 'extra'", &[]).await;
            let stays = extra.is_ok_and(|rows| rows.len() == 1);
            if stays && !fault.contains("people") || fault.contains("0 on the first side alone") {
                Ok(())
            } else {
                Err(fault)
            }
        })
        .await;
    world.in_target("DELETE FROM people WHERE email = 'extra'").await;

    let writers = write(&world, &[accounts.clone(), people.clone()]);
    order(&world, &["public.accounts"]).await;
    writers.after(100).await.expect("the writers write");
    world.until_equal().await;
    world.check_topics().await;
    world.check_nothing_parked(&["rdb"]).await;
    sink.stop().await.expect("it ends");
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// Lists of keys, of which many change while they are read: numeric keys that are equal though their texts differ, keys
/// without a row, long columns that most updates leave alone.
#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_a_list_is_answered_once_as_it_is_at_its_place() {
    let shapes = [workload::accounts(), workload::people(), workload::prices(), workload::notes()];
    let mut world = filled(&shapes, 200).await;
    let mut run = start(&mut world, Part::Run).await;
    world.until_equal().await;
    let slot = format!("{}_audit", world.prefix());
    audit::start(&world.source(Role::Superuser).await, &slot).await.expect("a slot for the audit");
    let writers = write(&world, &shapes);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut loads = Vec::new();
    for round in 0..4 {
        for shape in &shapes {
            let table = shape.table();
            let source = world.source(Role::Superuser).await;
            let column = &table.key[0];
            let query = format!("SELECT to_json({column}::text)::text FROM {}", table.sql());
            let rows = source.query(&query, &[]).await.expect("the source answers");
            let mut keys: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
            let absent = ["\"-1\"", "\"-2.0\"", "\"-2.00\"", "\"-3\""].map(str::to_owned);
            keys.extend(absent[..3].iter().take(if table.key[0] == "amount" { 3 } else { 1 }).cloned());
            let file = folder.path().join(format!("keys-{round}"));
            std::fs::write(&file, keys.into_iter().collect::<Vec<_>>().join("\n")).expect("a file");
            let ordered =
                order(&world, &[&table.name.to_string(), "--keys-file", file.to_str().expect("a name")]).await;
            loads.extend(ordered.into_iter().map(|load| (table.clone(), load)));
        }
    }
    writers.after(400).await.expect("the writers write");
    for shape in &shapes {
        until_loaded(&world, shape.table()).await;
    }
    world.until_equal().await;
    world.check_topics().await;
    world.until_audit_agrees(&slot).await;
    for (table, load) in &loads {
        let answers = world.topic(table).await.answers(load).unwrap_or_else(|fault| panic!("{}: {fault}", table.name));
        let count = |op: &str| answers.values().filter(|answer| *answer == op).count();
        assert!(count("r") > 20, "{}: {answers:?}", table.name);
        assert!(count("d") >= 1, "{}: {answers:?}", table.name);
        let twice = ["-2.0", "-2.00"].iter().filter(|key| answers.contains_key(&format!(r#"{{"amount":"{key}"}}"#)));
        assert!(twice.count() <= 1, "equal keys have one answer: {answers:?}");
    }
    world.check_nothing_parked(&["rdb"]).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// An extension's type, whose own equality is nowhere in the search path: `a` and `A` are one key. Lists of it end though other
/// rows are written all the time. And a type of several columns, of which one may be NULL.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_only_an_extension_calls_equal_have_one_answer() {
    let names = Table::new("public.names", &["name"], "name citext PRIMARY KEY, n int")
        .before("CREATE EXTENSION IF NOT EXISTS citext WITH SCHEMA public");
    let pairs = Table::new("public.pairs", &["pair"], "pair pair PRIMARY KEY, n int")
        .before("CREATE TYPE public.pair AS (a int, b text)");
    let mut world = World::builder().table(names.clone()).table(pairs.clone()).start().await;
    world.in_source("INSERT INTO names SELECT 'Name' || i, i FROM generate_series(1, 50) i").await;
    world.in_source("INSERT INTO pairs VALUES ((1, NULL), 1), ((2, 'x'), 2), ((NULL, NULL), 3)").await;
    let mut run = start(&mut world, Part::Run).await;
    world.until_equal().await;
    let load =
        order(&world, &["public.pairs", "--key", "(1,)", "--key", "(2,x)", "--key", "(,)", "--key", "(3,)"]).await;
    until_answered(&world, &pairs, &load[0], 4).await;
    let answers = world.topic(&pairs).await.answers(&load[0]).expect("one answer each");
    let absent: Vec<&String> = answers.iter().filter(|(_, op)| *op == "d").map(|(key, _)| key).collect();
    assert_eq!(absent, [r#"{"pair":"(3,)"}"#], "{answers:?}");

    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let writer = world.source(Role::Superuser).await;
    let writing = tokio::spawn(async move {
        let mut n = 10;
        while stopped.try_recv().is_err() {
            n = 10 + (n + 1) % 40;
            // Now under this text, now under that.
            let sql = format!("UPDATE names SET n = n + 1, name = translate(name, 'Nn', 'nN') WHERE name = 'name{n}'");
            writer.batch_execute(&sql).await.expect("the source takes it");
        }
    });
    let mut loads = Vec::new();
    for _ in 0..4 {
        let keys = ["name1", "NAME1", "name20", "Nobody", "nobody"];
        let keys: Vec<&str> = keys.iter().flat_map(|key| ["--key", *key]).collect();
        loads.extend(order(&world, &[&["public.names"][..], &keys].concat()).await);
    }
    // Nobody comes to the end of the topic while it grows like this.
    world
        .until("all lists are answered under load", WITHIN, async || {
            let log = run.log();
            let read = log.matches("rows were read by their keys table=public.names").count();
            if read >= loads.len() { Ok(()) } else { Err(format!("{read} are")) }
        })
        .await;
    stop.send(()).expect("it still writes");
    writing.await.expect("it writes to the end");
    for load in &loads {
        let answers = world.topic(&names).await.answers(load).expect("one answer each");
        assert_eq!(answers.get(r#"{"name":"Name1"}"#).map(String::as_str), Some("r"), "{answers:?}");
        let of_20: Vec<&String> =
            answers.iter().filter(|(key, _)| key.to_lowercase().contains("20")).map(|(_, op)| op).collect();
        assert_eq!(of_20, ["r"], "{answers:?}");
        assert_eq!(answers.values().filter(|op| *op == "d").count(), 1, "{answers:?}");
    }
    world.until_equal().await;
    world.check_topics().await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

async fn until_answered(world: &World, table: &Table, load: &str, count: usize) {
    world
        .until("the list is answered", WITHIN, async || {
            let answers = world.topic(table).await.answers(load)?;
            if answers.len() >= count { Ok(()) } else { Err(format!("{answers:?}")) }
        })
        .await;
}

/// A load is paused, outlives its process so, goes on and ends; another is cancelled; a third is killed with its process and
/// ends all the same. And a list of keys dies before it is answered, and is answered.
#[tokio::test(flavor = "multi_thread")]
async fn loads_are_steered_and_outlive_their_process() {
    let accounts = workload::accounts();
    let mut world = filled(std::slice::from_ref(&accounts), 100).await;
    world.in_source("INSERT INTO accounts (id, owner) SELECT i, 'many' FROM generate_series(1000, 1800) i").await;
    let table = accounts.table().clone();
    world.expect_log("WARN");
    world.configuration.set("source.chunk_rows_max", 25).environment("TRIBUTARY_FAILPOINTS", "chunk-read=delay:40");
    let mut source = start(&mut world, Part::Source).await;
    until_loaded(&world, &table).await;

    let load = order(&world, &["public.accounts", "--mode", "merge"]).await;
    let taken = world.command(&["snapshot", "start", "public.accounts", "--mode", "merge"]).await;
    assert_eq!(taken.code, Some(2), "{taken:?}");
    assert!(taken.stderr.contains(&load[0]), "it names the load that is under way: {taken:?}");
    let paused = world.command(&["snapshot", "pause", &load[0]]).await;
    assert_eq!(paused.code, Some(0), "{paused:?}");
    assert_eq!(status(&world, &table).await, ("paused".to_owned(), load.clone()));
    source.kill9().await.expect("it is killed");
    source.restart().expect("it starts again");
    source.ready(WITHIN).await.expect("it streams");
    assert_eq!(status(&world, &table).await, ("paused".to_owned(), load.clone()));
    let resumed = world.command(&["snapshot", "resume"]).await;
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    until_status(&world, &table, |state, _| state == "loading").await;
    source.kill9().await.expect("it is killed");

    // Nobody reads: the order waits in the stream.
    let waits = world.command(&["snapshot", "start", "public.accounts", "--key", "1000", "--key", "1"]).await;
    assert_eq!(waits.code, Some(0), "{waits:?}");
    assert!(waits.stdout.contains("nobody reads from the slot"), "{waits:?}");
    let list = waits.stdout.lines().next().and_then(|line| line.strip_prefix("load ")).expect("its id").to_owned();
    source.restart().expect("it starts again");
    until_answered(&world, &table, &list, 2).await;
    until_loaded(&world, &table).await;

    let load = order(&world, &["public.accounts", "--from", "1100", "--to", "1700"]).await;
    let cancelled = world.command(&["snapshot", "cancel", &load[0]]).await;
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
    until_loaded(&world, &table).await;
    let gone = world.command(&["snapshot", "cancel", &load[0]]).await;
    assert_eq!(gone.code, Some(2), "{gone:?}");
    let turned = world.command(&["snapshot", "start", "public.accounts", "--from", "1700", "--to", "1100"]).await;
    assert!(turned.code == Some(2) && turned.stderr.contains("turn them round"), "{turned:?}");

    let before = rows_of(&world, &table).await;
    order(&world, &["public.accounts", "--from", "1500", "--to", "1509"]).await;
    until_loaded(&world, &table).await;
    assert_eq!(rows_of(&world, &table).await - before, 10, "both ends are among them");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// How many rows loads have published.
async fn rows_of(world: &World, table: &Table) -> usize {
    let records = world.topic(table).await;
    records.rows().filter(|record| record.event().is_ok_and(|event| event.op == "r")).count()
}

/// Whoever may connect may write messages. None of them stops the source, and none of what they say is in the log: whatever
/// a type may have against the text of a key.
#[tokio::test(flavor = "multi_thread")]
async fn what_strangers_write_into_the_stream_is_ignored() {
    let accounts = workload::accounts();
    let full = "ALTER TABLE {table} REPLICA IDENTITY FULL";
    let paths = Table::new("public.paths", &["path"], "path ltree, n int")
        .before("CREATE EXTENSION IF NOT EXISTS ltree WITH SCHEMA public")
        .after(full);
    let docs = Table::new("public.docs", &["doc"], "doc json, n int").after(full);
    let of_class = Table::new("public.of_class", &["class"], "class regclass PRIMARY KEY, n int");
    let tables = [accounts.table().clone(), paths.clone(), docs, of_class.clone()];
    let mut world = World::builder().tables(tables).start().await;
    let client = world.source(Role::Superuser).await;
    workload::fill(&client, world.seed, std::slice::from_ref(&accounts), 50).await.expect("the tables take rows");
    world.in_source("INSERT INTO paths VALUES ('a.b', 1)").await;
    let keys = toml::toml! {
        "public.paths" = ["path"]
        "public.docs" = ["doc"]
    };
    world.configuration.set("source.keys", keys);
    world.expect_log("a command was ignored");
    world.expect_log("keys that can name no row");
    let mut source = start(&mut world, Part::Source).await;
    world.until_published().await;
    let stranger = world.source(Role::Application).await;
    let table = r#""schema":"public","table":"accounts""#;
    let many = vec![r#"{"id":1}"#; 2_000].join(",");
    for text in [
        "load/secret".to_owned(),
        r#"load/s1/{"tables":[{"schema":"secret","table":"secret"}]}"#.to_owned(),
        format!(r#"keys/s2/{{{table},"keys":[{{"owner":"secret"}}]}}"#),
        format!(r#"keys/s3/{{{table},"keys":[{many}]}}"#),
        format!(r#"keys/s4/{{{table},"keys":[{{"id":"secret"}},{{"id":99999999999999999999999}}]}}"#),
        format!(r#"range/s5/{{{table},"after":["secret"]}}"#),
        format!(r#"range/s6/{{{table},"after":["1","2"]}}"#),
        format!(r#"range/r1/{{{table},"after":["3"],"upto":["3"]}}"#),
        format!(r#"range/r2/{{{table},"after":["10"],"upto":["9"]}}"#),
        r#"range/r3/{"schema":"public","table":"of_class","after":["secret"]}"#.to_owned(),
        r#"keys/s12/{"schema":"public","table":"of_class","keys":[{"class":"secret"},{"class":"pg_class"}]}"#
            .to_owned(),
        r#"keys/s13/{"schema":"public","table":"paths","keys":[{"path":"secret..b"},{"path":"a.b"}]}"#.to_owned(),
        r#"keys/s14/{"schema":"public","table":"docs","keys":[{"doc":"[]"}]}"#.to_owned(),
        r#"cancel/s7/{"load":"secret"}"#.to_owned(),
        format!("keys/s8/{}", "[".repeat(100_000)),
        // A load in place of what is there begins with a truncate.
        format!(r#"load/s9/{{"tables":[{{{table}}}]}}"#),
        format!(r#"load/s10.{}/{{"tables":[{{{table}}}]}}"#, "0".repeat(64)),
    ] {
        let query = "SELECT pg_logical_emit_message(true, $1, $2::text)";
        let prefix = format!("tributary/{}", world.slot());
        stranger.execute(query, &[&prefix, &text]).await.expect("anybody may");
    }
    let load = order(&world, &["public.accounts", "--key", "-5"]).await;
    until_answered(&world, accounts.table(), &load[0], 1).await;
    until_loaded(&world, accounts.table()).await;
    assert_eq!(status(&world, accounts.table()).await.1, Vec::<String>::new(), "nothing is left open");
    until_answered(&world, &paths, "s13", 1).await;
    until_answered(&world, &of_class, "s12", 1).await;
    let told = source.log().matches("a command was ignored").count();
    assert_eq!(told, 14, "{}", source.log());
    assert!(source.log().contains("a type without equality"), "{}", source.log());
    world.until_published().await;
    let is_truncate = |record: &Record| record.value.as_deref().is_some_and(|value| value.contains("truncate"));
    assert!(!world.topic(accounts.table()).await.0.iter().any(is_truncate), "nobody empties targets");
    assert!(!source.log().contains("secret"), "{}", source.log());

    // Who may, and asks for more at once than a source keeps, is told before any of it is ordered.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), (0..500_000).map(|n| format!("{n}\n")).collect::<String>()).expect("it is ours");
    let name = file.path().to_str().expect("a name");
    let refused = world.command(&["snapshot", "start", "public.accounts", "--keys-file", name]).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("nothing was ordered"), "{refused:?}");
    assert_eq!(status(&world, accounts.table()).await.1, Vec::<String>::new(), "nothing was");
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// The file says another list, which cannot be brought about: the source goes on by the one before, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_cannot_be_brought_about_is_given_up() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let mut world = World::builder().table(accounts.table().clone()).start().await;
    world.make(people.table()).await;
    world.expect_log("ERROR");
    world.expect_log("WARN");
    let mut source = start(&mut world, Part::Source).await;
    let file = source.file();
    let text = std::fs::read_to_string(&file).expect("it has a file");
    let listed = text.replacen("\"public.accounts\"", "\"public.accounts\", \"public.people\"", 1);
    assert_ne!(listed, text);
    std::fs::write(&file, listed).expect("it is ours");
    let message = "SELECT pg_logical_emit_message(true, $1, 'configuration/c1/{}')";
    let client = world.source(Role::Superuser).await;
    client.execute(message, &[&format!("tributary/{}", world.slot())]).await.expect("anybody may");
    // Its role does not own the table, so it cannot put it into the publication.
    source.logs("going on with the one before", WITHIN).await.expect("it says so");
    workload::fill(&client, world.seed, &[accounts], 100).await.expect("the table takes rows");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// A table is put on the list of the running source and taken off again, with all that it left behind. A change in a file on
/// another machine is told, and changes nothing. What groups still choose stays.
#[tokio::test(flavor = "multi_thread")]
async fn tables_come_and_go_by_command() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let shares = |name: &str| Table::new(&format!("public.{name}"), &["id"], "id bigint PRIMARY KEY");
    let (stays, goes) = (shares("stays"), shares("goes"));
    let mut world = World::builder().table(accounts.table().clone()).redis_group().start().await;
    for table in [people.table(), &stays, &goes] {
        world.make(table).await;
    }
    as_owner(&mut world);
    world
        .in_source("CREATE TABLE keyless (n integer); INSERT INTO stays VALUES (1); INSERT INTO goes VALUES (1)")
        .await;
    world
        .configuration
        .set("source.tables", vec!["public.accounts", "public.stays", "public.goes"])
        .set("source.topics.routes.both", vec!["public.stays", "public.goes"]);
    world.expect_log("source.tables is what it was");
    let client = world.source(Role::Superuser).await;
    workload::fill(&client, world.seed, &[accounts.clone(), people.clone()], 100).await.expect("the tables take rows");
    let mut source = start(&mut world, Part::Source).await;
    world.until_published().await;
    let writers = write(&world, &[accounts.clone(), people.clone()]);

    let before = std::fs::read_to_string(source.file()).expect("it has a file");
    let would = source.command(&["table", "add", "public.people", "--dry-run"]).await.expect("it runs");
    assert_eq!(would.code, Some(0), "{would:?}");
    for (table, why) in [("public.nowhere", "public.nowhere"), ("public.keyless", "no replica identity")] {
        let refused = source.command(&["table", "add", table]).await.expect("it runs");
        assert!(refused.code == Some(2) && refused.stderr.contains(why), "{refused:?}");
    }
    assert_eq!(std::fs::read_to_string(source.file()).expect("it has a file"), before, "only said");
    let elsewhere = world.command(&["table", "add", "public.people", "--no-wait"]).await;
    assert_eq!(elsewhere.code, Some(0), "{elsewhere:?}");
    source.logs("source.tables is what it was", WITHIN).await.expect("it says that its own file is another");
    let elsewhere = world.command(&["table", "add", "public.people"]).await;
    assert!(elsewhere.code == Some(1) && elsewhere.stdout.contains("by the list before"), "{elsewhere:?}");

    let added = source.command(&["table", "add", "public.people"]).await.expect("it runs");
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(added.stdout.contains("has gone over"), "{added:?}");
    writers.after(200).await.expect("the writers write");
    world.tables.push(people.table().clone());
    world.until_published().await;
    // Before the source has let it go it is wanted again.
    let off = source.command(&["table", "remove", "public.people", "--no-wait"]).await.expect("it runs");
    assert!(off.code == Some(1) && off.stdout.contains("remains"), "{off:?}");
    let again = source.command(&["table", "add", "public.people"]).await.expect("it runs");
    assert!(again.code == Some(0) && again.stdout.contains("has gone over"), "{again:?}");
    world.in_source("UPDATE people SET name = name || '!'").await;
    world.until_published().await;
    let names = ["public.accounts", "public.people", "public.stays", "public.goes"];
    world.configuration.set("source.tables", names.to_vec());
    let mut sink = start(&mut world, Part::Sink).await;
    world.until_equal().await;
    sink.stop().await.expect("it ends");

    let topic = world.topic_name(people.table());
    let target = world.target(Role::Superuser).await;
    let standing = async |topic: &str| {
        let progress = "SELECT count(*) FROM tributary.progress WHERE topic = $1";
        target.query_one(progress, &[&topic]).await.expect("it answers").get::<_, i64>(0)
    };
    // One of the groups lists its tables by itself.
    let listing = |items: &str| {
        let text = std::fs::read_to_string(source.file()).expect("it has a file");
        let is_own = |line: &&str| !line.starts_with("tables = [\"public.*\"");
        let text: String = text.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
        let text = text.replace("[groups.rdb]\n", &format!("[groups.rdb]\ntables = [{items}]\n"));
        std::fs::write(source.file(), text).expect("it can be written");
    };
    listing("\"public.*\"");
    let kept = source.command(&["table", "remove", "public.people", "--topic"]).await.expect("it runs");
    assert!(kept.code == Some(1) && kept.stdout.contains("\"!public.people\""), "{kept:?}");
    assert!(kept.stdout.contains("has gone over") && !kept.stdout.contains("deleted"), "{kept:?}");
    assert!(standing(&topic).await > 0, "{kept:?}");
    listing("\"public.*\", \"!public.people\"");
    let removed = source.command(&["table", "remove", "public.people", "--topic"]).await.expect("it runs");
    assert_eq!(removed.code, Some(0), "{removed:?}");
    assert!(removed.stdout.contains("deleted") && removed.stdout.contains("in Redis"), "{removed:?}");
    let publication = "SELECT count(*) FROM pg_publication_tables WHERE tablename = 'people'";
    assert_eq!(client.query_one(publication, &[]).await.expect("it answers").get::<_, i64>(0), 0, "{removed:?}");
    assert_eq!(standing(&topic).await, 0, "{removed:?}");

    // Of a topic that others share only its own rows go.
    let shared = format!("{}.both", world.prefix());
    let of = |table: &str, part: i32| {
        format!(
            "INSERT INTO tributary.parked (grp, topic, part, off, tbl, key, position, class, record, cause)
             VALUES ('rdb', '{shared}', {part}, 0, '{table}', '', '', 'dead', '{{}}', '');
             INSERT INTO tributary.hold (id, grp, kind, at, topics, created_by)
             VALUES ('truncate/rdb/x/{table}', 'rdb', 'truncate', 'x', '{{{shared}}}', '')"
        )
    };
    world.in_target(&format!("{}; {}", of("public.stays", 0), of("public.goes", 1))).await;
    listing("\"public.*\", \"!public.people\", \"!public.goes\"");
    let removed = source.command(&["table", "remove", "public.goes", "--topic"]).await.expect("it runs");
    assert!(removed.code == Some(0) && removed.stdout.contains("public.stays"), "{removed:?}");
    let left =
        "SELECT string_agg(tbl, ' ') || ' ' || (SELECT string_agg(id, ' ') FROM tributary.hold) FROM tributary.parked";
    let left: String = target.query_one(left, &[]).await.expect("it answers").get(0);
    assert_eq!(left, "public.stays truncate/rdb/x/public.stays", "{removed:?}");
    assert!(standing(&shared).await > 0, "{removed:?}");
    world.in_target("DELETE FROM tributary.parked; DELETE FROM tributary.hold").await;
    world.tables.pop();
    write(&world, &[accounts.clone(), people.clone()]).after(50).await.expect("the writers write");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}
