//! Tables without a key of their own: by one that the configuration names, or refused.

use tokio_util::sync::CancellationToken;

use super::*;

/// Neither key nor index. The target must have one, which is for the test to make.
fn log() -> Table {
    Table::new("public.log", &["day", "line"], "day date, line int, body text")
        .after("ALTER TABLE {table} REPLICA IDENTITY FULL")
}

async fn world(rows: u32) -> World {
    let mut world = World::builder().table(log()).start().await;
    world.configuration.set("source.keys", keys(&[("public.log", &["day", "line"])]));
    world.in_target("CREATE UNIQUE INDEX ON log (line, day)").await;
    world
        .in_source(&format!(
            "INSERT INTO log SELECT '2024-01-01'::date + i % 7, i, repeat(md5(i::text), 1 + i % 20) FROM generate_series(1, {rows}) i"
        ))
        .await;
    world
}

/// Rows move between pages by updates while the table is read page by page, come, go, and change their keys.
async fn write(world: &World, stop: CancellationToken) {
    let client = world.source(Role::Application).await;
    tokio::spawn(async move {
        for n in 10_000_i32.. {
            if stop.is_cancelled() {
                return;
            }
            let statements = format!(
                "SELECT pg_sleep(0.005); UPDATE log SET body = repeat('x', {n} * 7 % 900) WHERE line % 97 = {n} % 97;
                 INSERT INTO log VALUES ('2024-02-01', {n}, 'new');
                 DELETE FROM log WHERE line = {n} - 5 OR (line % 1009 = {n} % 1009 AND line % 5 = 0);
                 UPDATE log SET line = -line WHERE line = {n} - 3"
            );
            // A rewrite may be in the way; the next statements will do.
            let _ = client.batch_execute(&statements).await;
        }
    });
}

/// In the middle of the load the table is written anew: rows that were not read yet lie where the load has been already.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_a_key_is_read_by_its_pages_also_when_these_are_written_anew() {
    let mut world = world(6_000).await;
    // Slow enough that all of what follows falls into the load.
    world.configuration.set("source.chunk_rows_max", 100).set("source.snapshot_rows_per_second_max", 100);
    let stop = CancellationToken::new();
    write(&world, stop.clone()).await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    let read = async |rows: usize| {
        world
            .until("so many rows are read", WITHIN, async || {
                let records = world.topic(&log()).await;
                let found = records.rows().filter(|record| record.event().is_ok_and(|event| event.op == "r")).count();
                if found >= rows { Ok(()) } else { Err(format!("{found} rows")) }
            })
            .await;
    };
    read(1_500).await;
    world.in_source("DELETE FROM log WHERE ctid < '(40,0)'").await;
    world.in_source("VACUUM FULL log").await;
    assert!(!run.log().contains("loaded table=public.log"), "the load is not done yet, or this proves nothing");
    read(3_000).await;
    run.kill9().await.expect("it is killed");
    world.in_source("VACUUM FULL log").await;
    // From here on nothing has to fall into it.
    world.configuration.set("source.snapshot_rows_per_second_max", 0);
    run.restart_with(world.configuration.clone()).expect("it starts again");
    run.logs("loaded table=public.log", WITHIN).await.expect("the load ends");
    stop.cancel();
    world.ends_equal(run).await;
}

/// What nobody can name stops the source by name, in the load as in the stream, and the way out that it tells leads out.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_its_named_key_stops_until_the_table_is_mended() {
    let other = Table::new("public.other", &["id"], "id int PRIMARY KEY");
    let mut world = world(100).await;
    world.make(&other).await;
    world.in_source(&format!("ALTER PUBLICATION {} ADD TABLE other", quote(&world.slot()))).await;
    world.configuration.set("source.tables", vec!["public.log", "public.other"]);
    world.expect_log("ERROR");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    world.in_source("INSERT INTO log VALUES ('2024-03-01', NULL, 'nameless'); INSERT INTO other VALUES (1)").await;
    let status = source.ends(WITHIN).await.expect("it ends by itself");
    assert!(!status.success());
    for words in ["public.log", "NULL in \"line\"", "source.keys names", "take public.log out of source.tables"] {
        assert!(source.log().contains(words), "{words:?} is not in:\n{}", source.tail());
    }

    let listed = world.configuration.clone();
    world.configuration.set("source.tables", vec!["public.other"]).remove("source.keys");
    world.expect_log("are passed over: it is on its way out");
    let mut source = world.start(Part::Source);
    source.logs("beginning again: the list of tables", WITHIN).await.expect("it goes over");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.in_source("UPDATE log SET line = 0 WHERE line IS NULL; ALTER TABLE log ALTER line SET NOT NULL").await;
    source.stop().await.expect("it ends");

    world.configuration = listed;
    let mut source = world.start(Part::Source);
    source.logs("beginning again: the list of tables", WITHIN).await.expect("it goes over");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.tables.push(other);
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// Every fault of `source.keys` at once, and a table that nothing names.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_will_not_do_is_told_with_the_way_to_one_that_does() {
    let mut world = world(1).await;
    world
        .in_source(
            "CREATE TABLE plain (a int, b int); CREATE TABLE wrong (a int); ALTER TABLE wrong REPLICA IDENTITY FULL;
             CREATE TABLE own (id int PRIMARY KEY, a int);
             CREATE TABLE late (a int, UNIQUE (a) DEFERRABLE); ALTER TABLE late REPLICA IDENTITY FULL;
             CREATE TABLE nameless (a int); GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC",
        )
        .await;
    let named: [(&str, &[&str]); 5] = [
        ("public.plain", &["a"]),
        ("public.wrong", &["b"]),
        ("public.own", &["a"]),
        ("public.late", &["a"]),
        ("public.nobody", &["a"]),
    ];
    world.configuration.set("source.tables", vec!["public.*", "!public.log"]).set("source.keys", keys(&named));
    world.expect_log("ERROR");
    let mut source = world.start(Part::Source);
    let status = source.ends(WITHIN).await.expect("it ends by itself");
    assert!(!status.success());
    let log = source.log();
    for words in [
        "cannot publish public.plain: source.keys names a key for it, and only under REPLICA IDENTITY FULL",
        "cannot publish public.wrong: source.keys names \"b\" for it, which is no column",
        "cannot publish public.own: source.keys names a key for it, and its replica identity names its rows by (id)",
        "cannot publish public.late: source.keys names (a) for it, which a DEFERRABLE constraint",
        "source.keys names a key for public.nobody, which source.tables does not publish",
        "cannot publish public.nameless: it has no replica identity that names a row",
        "name the columns in source.keys",
    ] {
        assert!(log.contains(words), "{words:?} is not in:\n{log}");
    }
    world.finish().await;
}

/// What the sink lacks is told with the key that the source names; what the server does not hold, doctor tells.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_and_sink_know_the_named_key() {
    let mut world = World::builder().table(log()).start().await;
    world.configuration.set("source.keys", keys(&[("public.log", &["day", "line"])]));
    let doctor = world.command(&["doctor"]).await;
    let said = format!("{doctor:?}");
    for words in ["key day, line by source.keys, and a NULL in it would stop the source", "no unique index on"] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    world.in_source("INSERT INTO log VALUES ('2024-01-01', 1, 'a')").await;
    let mut run = world.start(Part::Run);
    world.expect_log("ERROR");
    world.expect_log("WARN");
    run.logs("the target's table public.log has no", WITHIN).await.expect("the sink refuses");
    run.kill9().await.expect("it is killed");
    world.finish().await;
}

/// A partitioned table has no pages of its own: it is read by the text of the named key, as rows are written by it. A cast to
/// text would write these two types otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_table_without_a_key_is_read_by_the_named_one() {
    let columns = "flag boolean NOT NULL, what char(4) NOT NULL, n int NOT NULL, body text";
    let table = Table::new("public.events", &["flag", "what", "n"], columns);
    let table = Table { columns: format!("{}) PARTITION BY RANGE (n", table.columns), ..table }
        .after("CREATE TABLE events_0 PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (200)")
        .after("CREATE TABLE events_1 PARTITION OF {table} FOR VALUES FROM (200) TO (MAXVALUE)")
        .after("ALTER TABLE {table} REPLICA IDENTITY FULL; ALTER TABLE events_0 REPLICA IDENTITY FULL")
        .after("ALTER TABLE events_1 REPLICA IDENTITY FULL");
    let mut world = World::builder().table(table).without_publication().start().await;
    let publication = quote(&world.slot());
    let named: [(&str, &[&str]); 1] = [("public.events", &["flag", "what", "n"])];
    world.configuration.set("source.keys", keys(&named)).set("source.chunk_rows_max", 20);
    world.in_target("CREATE UNIQUE INDEX ON events (flag, what, n)").await;
    world
        .in_source(&format!(
            "CREATE PUBLICATION {publication} FOR TABLE events WITH (publish_via_partition_root = true);
             INSERT INTO events SELECT i % 5 = 0, chr(97 + i % 3), i / 3, 'body' FROM generate_series(1, 1000) i"
        ))
        .await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world
        .in_source(
            "UPDATE events SET n = n + 150 WHERE n % 10 = 0 AND n < 200 AND n + 150 >= 340;
             UPDATE events SET body = 'changed' WHERE what = 'b'; DELETE FROM events WHERE n % 7 = 0",
        )
        .await;
    run.logs("loaded table=public.events", WITHIN).await.expect("the load ends");
    world.until_equal().await;
    world.check_topics().await;
    run.stop().await.expect("it ends");
    world.finish().await;
}

/// An index that answers the publication's condition gives rows in its own order, and few rows that pass it do not have a chunk
/// search all pages for more.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_read_as_they_lie_also_where_an_index_answers_the_row_filter() {
    if harness::place::postgres_major().expect("a known server") < 15 {
        return;
    }
    let mut world =
        World::builder().table(log().after("CREATE INDEX ON {table} (line)")).without_publication().start().await;
    world.configuration.set("source.keys", keys(&[("public.log", &["day", "line"])])).set("source.chunk_rows_max", 20);
    world.in_target("CREATE UNIQUE INDEX ON log (line, day)").await;
    let filtered = format!("CREATE PUBLICATION {} FOR TABLE log WHERE (line <= 50)", quote(&world.slot()));
    world.in_source(&filtered).await;
    let rows = "INSERT INTO log SELECT '2024-01-01', 6001 - i, repeat(md5(i::text), 4) FROM generate_series(1, 6000) i";
    world.in_source(&format!("{rows}; ANALYZE log")).await;
    let source = world.source(Role::Superuser).await;
    let plan = "EXPLAIN SELECT ctid, * FROM ONLY log WHERE ctid > '(0,0)' AND line <= 50 LIMIT 20";
    let plan = format!("{:?}", source.simple_query(plan).await.expect("a plan"));
    assert!(
        plan.contains("Index Scan using"),
        "by itself the server reads by the index, or this proves nothing: {plan}"
    );
    let mut run = world.start(Part::Run);
    run.logs("loaded table=public.log", WITHIN).await.expect("the load ends");
    let target = world.target(Role::Superuser).await;
    world
        .until("the target holds what passes the filter", WITHIN, async || {
            let row = target.query_one("SELECT count(*), max(line) FROM log", &[]).await;
            let row = row.map_err(|cause| cause.to_string())?;
            let found: (i64, Option<i32>) = (row.get(0), row.get(1));
            if found == (50, Some(50)) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    run.stop().await.expect("it ends");
    world.finish().await;
}
