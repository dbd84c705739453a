//! Partitions that come and go while rows are written to their root.

use harness::oracle::topic;

use super::*;

/// Partitioned by its key, and published under the root.
async fn partitioned() -> World {
    let table = Table::new("public.items", &["id"], "id bigint PRIMARY KEY, name text, size int");
    let mut world = World::builder().table(table).without_publication().start().await;
    world.configuration.set("source.watch_seconds", 1);
    let (name, role) = (publication(&world), Role::Source.name());
    world
        .in_source(&format!(
            "DROP TABLE items; CREATE TABLE items (id bigint PRIMARY KEY, name text, size int) PARTITION BY RANGE (id);
             CREATE TABLE items_0 PARTITION OF items FOR VALUES FROM (0) TO (100);
             CREATE TABLE items_1 PARTITION OF items FOR VALUES FROM (100) TO (1000000);
             GRANT SELECT ON items TO {role};
             CREATE PUBLICATION {name} FOR TABLE items WITH (publish_via_partition_root = true);
             INSERT INTO items SELECT i, 'item ' || i, i FROM generate_series(1, 200) i"
        ))
        .await;
    world
}

/// Waits until the source has looked at every partition that there is: it remembers each one's files in its state. One that
/// goes before it was looked at was never there.
async fn until_looked_at(world: &World) {
    let partitions = "SELECT oid FROM pg_class WHERE relkind = 'r' AND relispartition";
    let partitions = world.source(Role::Superuser).await.query(partitions, &[]).await.expect("the catalog answers");
    let files: Vec<String> = partitions.iter().map(|row| format!("[{},", row.get::<_, u32>(0))).collect();
    let state = schemas::topic::of_state(world.prefix());
    let looked_at = async || {
        let records = topic::read(world.kafka(), &state).await.map_err(|error| error.to_string())?.0;
        let unseen = |file: &&String| !records.iter().any(|r| r.value.as_ref().is_some_and(|v| v.contains(*file)));
        files.iter().find(unseen).map_or(Ok(()), |file| Err(format!("the partition {file} …] is not in the state")))
    };
    world.until("every partition was looked at", SEEN_WITHIN, looked_at).await;
}

/// Daily business: new partitions, made as such or attached empty, also with rows in the same transaction.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_without_rows_come_without_a_word() {
    let mut world = partitioned().await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let writer = Writer::start(&world).await;
    for (at, sql) in [
        "CREATE TABLE p PARTITION OF items FOR VALUES FROM (x) TO (y); INSERT INTO items VALUES (x, 'first')",
        "BEGIN; CREATE TABLE p PARTITION OF items FOR VALUES FROM (x) TO (y); INSERT INTO items VALUES (x, 'first'); COMMIT",
        "CREATE TABLE p (LIKE items INCLUDING ALL); ALTER TABLE items ATTACH PARTITION p FOR VALUES FROM (x) TO (y); INSERT INTO items VALUES (x, 'first')",
        "BEGIN; CREATE TABLE p (LIKE items INCLUDING ALL); ALTER TABLE items ATTACH PARTITION p FOR VALUES FROM (x) TO (y); COMMIT; INSERT INTO items VALUES (x, 'first')",
        "CREATE TABLE p PARTITION OF items FOR VALUES FROM (x) TO (y) PARTITION BY RANGE (id); CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (x) TO (y); INSERT INTO items VALUES (x, 'first')",
    ]
    .into_iter()
    .enumerate()
    {
        let from = 1_000_000 * (at + 1);
        let sql = sql.replace("(x", &format!("({from}")).replace("(y)", &format!("({})", from + 1000));
        world.in_source(&sql.replace(" p ", &format!(" part_{at} ")).replace("p_1", &format!("part_{at}_1"))).await;
    }
    drop(writer);
    world.until_published().await;
    until_looked_at(&world).await;
    world.expect_log("were dropped or detached");
    world.in_source("ALTER TABLE items DETACH PARTITION part_1; DELETE FROM items WHERE id = 7").await;
    source
        .logs("1 partition(s) of public.items were dropped or detached", SEEN_WITHIN)
        .await
        .expect("a person is told");
    assert_eq!(schemas(&world, &world.tables[0]).await.0, 0, "all rows were sent");
    source.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_comes_with_rows_stops_it_or_is_read() {
    let mut world = partitioned().await;
    world.expect_log("changed without being sent");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    world
        .in_source(
            "BEGIN; CREATE TABLE late (LIKE items INCLUDING ALL); INSERT INTO late SELECT i, 'late', i FROM generate_series(2000000, 2000010) i;
             ALTER TABLE items ATTACH PARTITION late FOR VALUES FROM (2000000) TO (3000000); COMMIT",
        )
        .await;
    stops(&mut world, &mut source, &["the partition public.late was attached with rows"]).await;
    source.restart_with(told(&world, "source.on_rewrite", "reload")).expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    // And once read, it is one of ours.
    source.stop().await.expect("it ends");
    source.restart_with(told(&world, "source.on_rewrite", "stop")).expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.in_source("UPDATE items SET name = 'in time' WHERE id > 1000000").await;
    world.until_published().await;

    // TRUNCATE of the root is sent, that of a partition is not.
    world.in_source("TRUNCATE items; INSERT INTO items SELECT i, 'again', i FROM generate_series(1, 200) i").await;
    world.until_published().await;
    world.in_source("TRUNCATE items_0").await;
    stops(&mut world, &mut source, &["the partition public.items_0 was truncated by itself"]).await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_by_partition_stops_it() {
    let mut world = partitioned().await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let name = publication(&world);
    world.in_source(&format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = false)")).await;
    stops(&mut world, &mut source, &["publi"]).await;
    world.finish().await;
}
