//! Which tables are published, in which topics, and what of their columns and rows.

use std::time::Duration;

use harness::World;
use harness::oracle::{audit, tables, topic};
use harness::process::Part;
use harness::servers::Role;
use harness::table::{Table, quote};
use harness::workload::{self, Pace, Workload};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep_until};

const READY_WITHIN: Duration = Duration::from_secs(90);
const WITHIN: Duration = Duration::from_secs(90);

/// Patterns choose what is copied and followed. Three tables share a topic, two of them with the same keys, so that these
/// stand in one partition; source and sink die again and again in the load and in the stream.
#[tokio::test(flavor = "multi_thread")]
async fn three_tables_share_a_topic_while_source_and_sink_die() {
    let shapes = [workload::accounts(), workload::notes(), workload::prices(), workload::order_lines()];
    let mut world = World::builder().tables(workload::tables_of(&shapes)).start().await;
    world.expect_log("WARN");
    world.in_source("CREATE TABLE shop.order_tmp (n integer)").await;
    world
        .configuration
        .set("source.tables", vec!["public.*", "shop.order_*", "!shop.order_tmp", "shop.prices"])
        .set("source.topics.routes.trade", vec!["public.accounts", "public.no*", "shop.pr*"])
        .set("source.chunk_rows_max", 50)
        .set("groups.rdb.session_timeout_seconds", 6);
    let database = world.source(Role::Superuser).await;
    workload::fill(&database, world.seed, &shapes, 400).await.expect("the tables take rows");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("the source streams");
    let slot = format!("{}_audit", world.prefix());
    audit::start(&database, &slot).await.expect("a slot for the audit");
    let mut sink = world.start(Part::Sink);
    let pace = Pace { writers: 3, transactions_per_second: 40 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let mut random = ChaCha8Rng::seed_from_u64(world.seed);
    for round in 0..8 {
        let killed = if round % 2 == 0 { &mut source } else { &mut sink };
        sleep_until(Instant::now() + Duration::from_millis(random.random_range(200..1_500))).await;
        killed.kill9().await.expect("it is killed");
        killed.restart().expect("it starts again");
    }
    writers.after(300).await.expect("the writers write");
    world.until_equal().await;
    world.check_nothing_parked(&["rdb"]).await;

    let shared = format!("{}.trade", world.prefix());
    let three = workload::tables_of(&shapes[..3]);
    world.until_shared_topic_agrees(&shared, &three).await;
    let records = topic::read(world.kafka(), &shared).await.expect("the topic can be read");
    let changes = audit::changes(&database, &slot, &world.slot()).await.expect("the audit's slot can be read");
    for table in &three {
        audit::compare(&changes, table, &records.of(&table.name)).unwrap_or_else(|fault| panic!("{fault}"));
        let own = world.topic_name(table);
        assert!(!topic::exists(world.kafka(), &own).await.expect("Kafka answers"), "{own} was made as well");
    }
    let is_tombstone = |record: &&topic::Record| record.value.is_none();
    assert_eq!(records.0.iter().filter(is_tombstone).count(), 0, "a tombstone does not tell whose row is gone");
    source.stop().await.expect("the source ends");
    sink.stop().await.expect("the sink ends");
    world.finish().await;
}

/// A group that takes one table of a shared topic leaves the other alone, and cannot take it up in the middle. A truncate of
/// the other and of a table in a topic of its own is in both topics, and the shared one's partitions have no say in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_takes_its_tables_of_a_shared_topic_and_no_others() {
    let one = Table::new("public.one", &["id"], "id bigint PRIMARY KEY, name text");
    let other = Table::new("public.other", &["id"], "id bigint PRIMARY KEY, name text");
    let apart = Table::new("public.on_its_own", &["id"], "id bigint PRIMARY KEY, name text");
    let three = [one.clone(), other.clone(), apart.clone()];
    let mut world = World::builder().tables(three).start().await;
    world
        .configuration
        .set("source.topics.routes.both", vec!["public.one", "public.other"])
        .set("groups.rdb.tables", vec!["*.on*"])
        .set("groups.rdb.on_error", "stop");
    world.in_source("INSERT INTO one SELECT i, 'one' FROM generate_series(1, 30) i").await;
    world.in_source("INSERT INTO other SELECT i, 'other' FROM generate_series(1, 30) i").await;
    world.in_source("INSERT INTO on_its_own SELECT i, 'before' FROM generate_series(1, 30) i").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world.in_source("UPDATE other SET name = 'changed'; UPDATE one SET name = 'changed'").await;
    let (source, target) = (world.source(Role::Superuser).await, world.target(Role::Superuser).await);
    world.until("its table is equal", WITHIN, async || tables::compare(&source, &target, &one).await).await;
    assert_eq!(tables::count(&target, &other).await, Ok(0), "nobody asked for this table");

    world.until("so is the one apart", WITHIN, async || tables::compare(&source, &target, &apart).await).await;
    let mut holder = world.target(Role::Superuser).await;
    let topic = world.topic_name(&apart);
    let held = holder.transaction().await.expect("the target answers");
    let sql = "SELECT FROM tributary.progress WHERE topic = $1 AND part = 0 FOR UPDATE";
    held.execute(sql, &[&topic]).await.expect("it is locked");
    world
        .in_source(
            "TRUNCATE on_its_own, other; INSERT INTO on_its_own SELECT i, 'after' FROM generate_series(101, 130) i;
             INSERT INTO one VALUES (100, 'behind')",
        )
        .await;
    let arrived =
        "SELECT count(*) FROM one WHERE id = 100 UNION ALL SELECT count(*) FROM tributary.arrival WHERE topic = $1";
    world
        .until("the shared topic goes on and the other partitions stand", WITHIN, async || {
            let rows = target.query(arrived, &[&topic]).await.map_err(|cause| cause.to_string())?;
            let found: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            if found[0] == 1 && found[1] >= 1 { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    let before = "SELECT count(*) FILTER (WHERE name = 'before'), count(*) FROM on_its_own";
    let row = target.query_one(before, &[]).await.expect("the target answers");
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1)),
        (30, 30),
        "a partition is missed, so nothing is truncated"
    );
    held.commit().await.expect("it is let go");
    world.until("it holds what came after", WITHIN, async || tables::compare(&source, &target, &apart).await).await;
    let left = "SELECT count(*) FROM tributary.hold";
    assert_eq!(target.query_one(left, &[]).await.expect("the target answers").get::<_, i64>(0), 0, "no hold is left");
    run.stop().await.expect("it ends");

    let mut both = world.configuration.clone();
    both.set("groups.rdb.tables", vec!["public.*"]);
    let mut sink = world.start_with(Part::Sink, both);
    let status = sink.ends(WITHIN).await.expect("it ends by itself");
    assert!(!status.success() && sink.log().contains("has passed over events of public.other"), "{}", sink.log());
    world.expect_log("passed over events of public.other");
    world.finish().await;
}

/// Two tables of a topic are loaded one after the other, by one load. The end of the first must not be taken for the end of
/// the second: a change that leaves long values out may still come before its row.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_ends_leaves_its_neighbour_in_the_topic_open() {
    let (accounts, people) = (workload::accounts().table().clone(), workload::people().table().clone());
    let mut world = World::builder().table(accounts).table(people.clone()).start().await;
    world
        .configuration
        .set("source.tables", vec!["public.accounts", "public.people"])
        .set("source.topics.routes.both", vec!["public.*"])
        .set("source.chunk_rows_max", 100)
        // In one batch a change and its row would become one, and nobody would have missed the row.
        .set("groups.rdb.batch_rows_max", 1);
    world
        .in_source("INSERT INTO accounts SELECT i, 'owner', 1, true, '2024-02-29' FROM generate_series(1, 3000) i")
        .await;
    world
        .in_source(
            "INSERT INTO people SELECT 'p' || i, 'name', 1, repeat(md5(i::text), 200) FROM generate_series(1, 50) i",
        )
        .await;
    let mut run = world.start(Part::Run);
    run.logs("loading table=public.accounts", READY_WITHIN).await.expect("the first table is loaded");
    // The reader waits for this lock, and who holds it writes before the row is read.
    let mut writer = world.source(Role::Superuser).await;
    let held = writer.transaction().await.expect("the source answers");
    held.batch_execute("LOCK TABLE people IN ACCESS EXCLUSIVE MODE").await.expect("nobody reads it yet");
    run.logs("loaded table=public.accounts", WITHIN).await.expect("the first table is done");
    held.batch_execute("UPDATE people SET name = 'changed'").await.expect("the source takes it");
    held.commit().await.expect("the source takes it");
    world.until_equal().await;
    world.check_nothing_parked(&["rdb"]).await;
    let records = topic::read(world.kafka(), &format!("{}.both", world.prefix())).await.expect("the topic can be read");
    let of_people = records.of(&people.name);
    let mut first = std::collections::BTreeMap::new();
    for record in of_people.rows() {
        first.entry(record.partition).or_insert_with(|| record.event().expect("an event").op);
    }
    assert!(
        first.len() > 1 && first.values().all(|op| op == "u"),
        "the changes stand before their rows, or this test proves nothing: {first:?}"
    );
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// Whether a target table is empty is asked for each table of a topic, whoever has come how far with the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_load_into_a_table_with_rows_is_refused_in_a_shared_topic_too() {
    let (accounts, notes) = (workload::accounts().table().clone(), workload::notes().table().clone());
    let mut world = World::builder().table(accounts).table(notes).start().await;
    world
        .configuration
        .set("source.tables", vec!["public.accounts", "public.notes"])
        .set("source.topics.routes.both", vec!["public.*"]);
    world.in_source("INSERT INTO accounts VALUES (1, 'owner', 1, true, '2024-02-29')").await;
    world.in_target("INSERT INTO notes VALUES (1, 'a stranger', 'left over')").await;
    let mut run = world.start(Part::Run);
    run.ends(WITHIN).await.expect("it ends by itself");
    assert!(run.log().contains("begins the first load of public.notes"), "{}", run.log());
    world.expect_log("ERROR");
    world.expect_log("WARN");
    world.finish().await;
}

/// A table that comes to match a pattern is taken up by a sink that has been running all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_sink_takes_up_what_comes_to_match() {
    let (one, two) = (workload::accounts().table().clone(), workload::notes().table().clone());
    let mut world = World::builder().table(one).start().await;
    world.configuration.set("source.tables", vec!["public.*"]);
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("the source streams");
    let mut sink = world.start(Part::Sink);
    sink.logs("consuming", READY_WITHIN).await.expect("the sink consumes");
    world.in_source("INSERT INTO accounts VALUES (1, 'owner', 1, true, '2024-02-29')").await;
    world.until_equal().await;
    source.stop().await.expect("the source ends");
    let grant = |role: Role| format!("GRANT ALL ON {} TO {}", two.sql(), role.name());
    world.in_source(&format!("{}; {}", two.ddl(), grant(Role::Source))).await;
    world.in_target(&format!("{}; {}", two.ddl(), grant(Role::Target))).await;
    world.in_source(&format!("ALTER PUBLICATION {} ADD TABLE notes", quote(&world.slot()))).await;
    world.in_source("INSERT INTO notes SELECT i, 'title', 'body' FROM generate_series(1, 20) i").await;
    world.tables.push(two);
    source.restart().expect("it starts again");
    world.until_equal().await;
    world.in_source("UPDATE notes SET title = 'changed'; UPDATE accounts SET owner = 'another'").await;
    world.until_equal().await;
    world.check_topics().await;
    assert!(sink.log().contains("the source publishes more that this group takes"), "{}", sink.log());
    world.check_nothing_parked(&["rdb"]).await;
    source.stop().await.expect("the source ends");
    sink.stop().await.expect("the sink ends");
    world.finish().await;
}

/// One refusal names every fault of the list, of the routes and of the columns, each with its remedy.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_list_is_told_at_once_and_nothing_is_touched() {
    let users = Table::new("public.users", &["id"], "id bigint PRIMARY KEY, name text, secret text");
    let mut world = World::builder().table(users).start().await;
    world
        .in_source(
            "CREATE VIEW public.names AS SELECT name FROM users; CREATE UNLOGGED TABLE public.scratch (id int PRIMARY KEY);
             CREATE TABLE public.log (line text)",
        )
        .await;
    let mut columns = toml::Table::new();
    let rule = |key: &str, names: &[&str]| {
        let names = names.iter().map(|name| toml::Value::from(*name)).collect::<Vec<_>>();
        toml::Value::Table([(key.to_owned(), toml::Value::Array(names))].into_iter().collect())
    };
    columns.insert("public.users".to_owned(), rule("exclude", &["secrets"]));
    columns.insert("public.nobody".to_owned(), rule("exclude", &["a"]));
    let mut configuration = world.configuration.clone();
    configuration
        .set("source.tables", vec!["public.*", "shop.nothing_*"])
        .set("source.columns", columns)
        .set("source.topics.routes.idle", vec!["public.idle_*"]);
    let mut source = world.start_with(Part::Source, configuration);
    let status = source.ends(WITHIN).await.expect("it ends by itself");
    let log = source.log();
    assert!(!status.success());
    for words in [
        "public.names, a view, which logical replication cannot carry: exclude it by \"!public.names\"",
        "public.scratch, an unlogged table",
        "exclude it by \"!public.log\"",
        "\"shop.nothing_*\" in source.tables matches no table",
        "\"secrets\", which is no column",
        "source.columns.\"public.nobody\" is about a table",
        "\"public.idle_*\" in source.topics.routes.idle matches no table",
    ] {
        assert!(log.contains(words), "the error does not say {words:?}; the log:\n{log}");
    }
    world.expect_log("ERROR");
    let exists = topic::exists(world.kafka(), &schemas::topic::of_state(world.prefix())).await;
    assert!(!exists.expect("Kafka answers"), "nothing is made before all is well");
    world.finish().await;
}

/// What is hidden at the source stands in no record, whatever way a row takes there: copied, inserted, updated with its old
/// row beside it, moved to another key with long values that the stream leaves out.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_columns_never_reach_kafka() {
    let columns = "id bigint PRIMARY KEY, name text, email varchar(200), phone text, password_hash text, story text";
    let storage = "ALTER TABLE {table} ALTER email SET STORAGE EXTERNAL, ALTER story SET STORAGE EXTERNAL";
    let users = Table::new("shop.users", &["id"], columns).after(storage);
    let full =
        Table::new("shop.full", &["id"], columns).after(storage).after("ALTER TABLE {table} REPLICA IDENTITY FULL");
    let cards = Table::new("shop.cards", &["id"], "id bigint PRIMARY KEY, holder text, number text");
    let three = [users.clone(), full.clone(), cards.clone()];
    let mut world = World::builder().tables(three.clone()).without_publication().start().await;
    let (owner, database) = (Role::Source.name(), quote(&world.source_database()));
    let owned = three.iter().map(|table| format!("ALTER TABLE {} OWNER TO {owner};", table.sql())).collect::<String>();
    world
        .in_source(&format!(
            "GRANT CREATE ON DATABASE {database} TO {owner}; GRANT ALL ON SCHEMA shop TO {owner}; {owned}"
        ))
        .await;
    for table in ["shop.users", "shop.full"] {
        world.in_target(&format!("ALTER TABLE {table} DROP password_hash, DROP story, ALTER email TYPE text")).await;
    }
    world.in_target("ALTER TABLE shop.cards DROP number").await;
    let rules = "['shop.users']\nexclude = ['password_hash', 'story']\nmask = { email = 'hash', phone = 'fixed:***' }
                 ['shop.full']\nexclude = ['password_hash', 'story']\nmask = { email = 'hash', phone = 'fixed:***' }
                 ['shop.cards']\ninclude = ['id', 'holder']";
    world
        .configuration
        .set("source.tables", vec!["shop.*"])
        .set("source.columns", rules.parse::<toml::Table>().expect("rules"))
        .environment("TRIBUTARY_SOURCE__MASK_SALT", "pepper and salt");
    for table in ["shop.users", "shop.full"] {
        let fill = "SELECT i, 'name', 'ann' || i || '@secret.example', 'secret phone', 'secret hash', 'secret story' || repeat('x', 3000)";
        world.in_source(&format!("INSERT INTO {table} {fill} FROM generate_series(1, 40) i")).await;
        world
            .in_source(&format!("UPDATE {table} SET email = 'secret' || repeat('y', 150), phone = NULL WHERE id = 40"))
            .await;
    }
    world.in_source("INSERT INTO shop.cards SELECT i, 'holder', 'secret number' FROM generate_series(1, 40) i").await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    for table in ["shop.users", "shop.full"] {
        world
            .in_source(&format!(
                "UPDATE {table} SET name = 'changed' WHERE id < 10; UPDATE {table} SET password_hash = 'secret again' WHERE id < 5;
                 UPDATE {table} SET id = id + 1000 WHERE id > 30; DELETE FROM {table} WHERE id = 12;
                 INSERT INTO {table} VALUES (500, 'new', 'ann1@secret.example', 'secret phone', 'secret', 'secret'), (501, NULL, NULL, NULL, NULL, NULL)"
            ))
            .await;
    }
    world
        .in_source(
            "UPDATE shop.cards SET number = 'secret too' WHERE id = 1; UPDATE shop.cards SET holder = 'h' WHERE id = 2",
        )
        .await;
    let (source, target) = (world.source(Role::Superuser).await, world.target(Role::Superuser).await);
    world
        .until("the target has what is published", WITHIN, async || {
            for table in ["shop.users", "shop.full"] {
                let plain = format!("SELECT string_agg(id || coalesce(name, '-'), ',' ORDER BY id) FROM {table}");
                let masked = format!(
                    "SELECT count(*) FILTER (WHERE length(email) = 64), count(*) FILTER (WHERE phone = '***'), count(*) FILTER (WHERE email IS NULL), count(*) FROM {table}"
                );
                let (here, there) = (source.query_one(&plain, &[]).await, target.query_one(&plain, &[]).await);
                let (here, there) = (here.map_err(|it| it.to_string())?, there.map_err(|it| it.to_string())?);
                if here.get::<_, Option<String>>(0) != there.get::<_, Option<String>>(0) {
                    return Err(format!("{table}: {:?} and {:?}", here.get::<_, Option<String>>(0), there.get::<_, Option<String>>(0)));
                }
                let found = target.query_one(&masked, &[]).await.map_err(|it| it.to_string())?;
                let found: [i64; 4] = [0, 1, 2, 3].map(|i| found.get(i));
                if found != [40, 39, 1, 41] {
                    return Err(format!("{table}: {found:?}"));
                }
            }
            let cards = "SELECT count(*) FROM shop.cards WHERE holder = 'holder' OR id = 2 AND holder = 'h'";
            let cards: i64 = target.query_one(cards, &[]).await.map_err(|it| it.to_string())?.get(0);
            if cards == 40 { Ok(()) } else { Err(format!("shop.cards: {cards}")) }
        })
        .await;
    // By openssl dgst -sha256 -hmac "pepper and salt".
    let hash = "14f9f77db8325cfd814d887183bc67a1006e6062b3e52f9f31fbef2e55fd53d5";
    for table in ["shop.users", "shop.full"] {
        let sql = format!("SELECT array_agg(id ORDER BY id) FROM {table} WHERE email = '{hash}'");
        let equal: Vec<i64> = target.query_one(&sql, &[]).await.expect("the target answers").get(0);
        assert_eq!(equal, [1, 500], "equal values stay equal, and so do those that were copied and those that came");
    }
    let listed = "SELECT attnames::text[] FROM pg_publication_tables WHERE tablename = 'cards'";
    let listed: Vec<String> = source.query_one(listed, &[]).await.expect("the source answers").get(0);
    assert_eq!(listed, ["id", "holder"], "what is not included does not even leave the server");
    check_no_secrets(&world, &three).await;

    // Under another name the column would show itself.
    world
        .in_source("ALTER TABLE shop.users RENAME password_hash TO pw; UPDATE shop.users SET pw = 'secret once more'")
        .await;
    run.ends(WITHIN).await.expect("it ends by itself");
    assert!(run.log().contains("\"password_hash\", which is gone, while \"pw\" has come"), "{}", run.log());
    world.expect_log("ERROR");
    check_no_secrets(&world, &three).await;
    world.finish().await;
}

/// Nothing of what is hidden, in no record of the tables' topics nor of the state.
async fn check_no_secrets(world: &World, hidden: &[Table]) {
    let mut topics: Vec<String> = hidden.iter().map(|table| world.topic_name(table)).collect();
    topics.push(schemas::topic::of_state(world.prefix()));
    for name in topics {
        let records = topic::read(world.kafka(), &name).await.expect("the topic can be read");
        assert!(!records.0.is_empty(), "{name} is empty");
        for record in &records.0 {
            let text = format!("{record:?}");
            let found = ["secret", "ann1", "pepper"].into_iter().find(|word| text.contains(word));
            assert!(found.is_none(), "{name} holds {found:?} in {text}");
        }
    }
}

/// A filter of the publication holds for the copy and for every change: rows come and go as they enter and leave it, also
/// where the stream leaves long values out of a row that enters.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_filter_is_copied_and_followed_exactly() {
    let items = Table::new(
        "shop.items",
        &["id", "active"],
        "id bigint NOT NULL, active boolean NOT NULL, label text, body text",
    )
    .after("CREATE UNIQUE INDEX items_by ON {table} (id, active)")
    .after("ALTER TABLE {table} REPLICA IDENTITY USING INDEX items_by")
    .after("ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL");
    let mut world = World::builder().table(items).without_publication().start().await;
    let publication = quote(&world.slot());
    world.in_source(&format!("CREATE PUBLICATION {publication} FOR TABLE shop.items WHERE (active)")).await;
    world
        .in_source("INSERT INTO shop.items SELECT i, i % 2 = 0, 'l' || i, repeat(md5(i::text), 200) FROM generate_series(1, 60) i")
        .await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    for change in [
        "UPDATE shop.items SET active = true WHERE id IN (1, 3, 5)",
        "UPDATE shop.items SET active = false WHERE id IN (2, 4)",
        "UPDATE shop.items SET label = 'touched' WHERE id IN (6, 7)",
        "INSERT INTO shop.items VALUES (100, true, 'in', 'b'), (101, false, 'out', 'b')",
        "DELETE FROM shop.items WHERE id IN (8, 9)",
        "UPDATE shop.items SET id = id + 1000, active = NOT active WHERE id IN (20, 21)",
        "BEGIN; UPDATE shop.items SET active = true WHERE id = 11; UPDATE shop.items SET active = false WHERE id = 11;
         UPDATE shop.items SET active = true, label = 'back' WHERE id = 11; COMMIT",
    ] {
        world.in_source(change).await;
    }
    let rows = "SELECT coalesce(string_agg(id || label || md5(body), ',' ORDER BY id), '') FROM shop.items";
    let (source, target) = (world.source(Role::Superuser).await, world.target(Role::Superuser).await);
    let here: String = source.query_one(&format!("{rows} WHERE active"), &[]).await.expect("the source answers").get(0);
    world
        .until("the target holds what passes the filter and nothing else", WITHIN, async || {
            let there = target.query_one(rows, &[]).await.map_err(|cause| cause.to_string())?.get::<_, String>(0);
            if here == there { Ok(()) } else { Err(format!("{here}\n{there}")) }
        })
        .await;
    world.check_nothing_parked(&["rdb"]).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}
