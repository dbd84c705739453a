//! Keys that go, come back, or become others.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_loses_its_key_stops_until_it_is_back() {
    let mut world = world(items()).await;
    world.expect_log("has lost its key");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    world
        .in_source("ALTER TABLE items DROP CONSTRAINT items_pkey; INSERT INTO items (id, name) VALUES (501, 'keyless')")
        .await;
    stops(&mut world, &mut source, &["the key by which it is published, (id)", "over the same columns"]).await;
    world.in_source("ALTER TABLE items ADD PRIMARY KEY (id); UPDATE items SET name = 'back' WHERE id > 100").await;
    source.restart().expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_key_is_announced_with_the_one_before() {
    let mut world = world(items()).await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    world
        .in_source(
            "BEGIN; ALTER TABLE items ALTER COLUMN code SET NOT NULL, DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (code); COMMIT;
             UPDATE items SET name = 'by code'",
        )
        .await;
    world
        .until("the rows stand in the topic", SEEN_WITHIN, async || {
            let records = world.topic(&world.tables[0]).await;
            let by_code = |record: &&harness::oracle::topic::Record| {
                record.key.as_deref().is_some_and(|key| key.starts_with("{\"code\":"))
            };
            let rows = records.rows().filter(by_code).count();
            if rows == 200 { Ok(()) } else { Err(format!("{rows} rows")) }
        })
        .await;
    let records = world.topic(&world.tables[0]).await.0;
    let told = records.iter().filter(|record| {
        record.value.as_deref().unwrap_or_default().contains("\"key\":[\"code\"],\"previous_key\":[\"id\"]")
    });
    assert_eq!(told.count(), 4, "once in each partition");
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// Identity NOTHING: PostgreSQL refuses updates and deletes, and inserts go on by the key that is still there.
#[tokio::test(flavor = "multi_thread")]
async fn identities_may_change_as_long_as_the_key_stays() {
    let mut world = world(items()).await;
    world.expect_log("REPLICA IDENTITY NOTHING");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let writer = Writer::start(&world).await;
    for identity in ["FULL", "NOTHING", "USING INDEX items_pkey", "FULL", "DEFAULT"] {
        world.in_source(&format!("ALTER TABLE items REPLICA IDENTITY {identity}; INSERT INTO items (id, name) SELECT max(id) + 100000, 'x' FROM items")).await;
        if identity == "NOTHING" {
            source.logs("REPLICA IDENTITY NOTHING", SEEN_WITHIN).await.expect("a person is told");
        }
    }
    drop(writer);
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// FULL does not say which columns are the key: since when it is another one, nobody can tell.
#[tokio::test(flavor = "multi_thread")]
async fn another_primary_key_under_full_stops_it() {
    let mut world = world(items().after("ALTER TABLE {table} REPLICA IDENTITY FULL")).await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    world
        .in_source("ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (code); UPDATE items SET name = 'x' WHERE id = 1")
        .await;
    stops(&mut world, &mut source, &["the key by which it is published, (id)"]).await;
    world.in_source("ALTER TABLE items ALTER COLUMN id SET NOT NULL; CREATE UNIQUE INDEX ON items (id)").await;
    source.restart().expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}
