//! Tables of every shape: with nothing in them, nothing beside their key, columns that are generated or gone, parents and
//! children.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_every_shape_are_copied_and_followed() {
    let tables = [
        Table::new("shapes.empty", &["id"], "id int PRIMARY KEY, name text"),
        Table::new("shapes.bare", &["a", "b"], "a int, b text, PRIMARY KEY (b, a)"),
        Table::new(
            "shapes.made",
            &["id"],
            "id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, z text",
        ),
        Table::new("shapes.gone", &["id"], "gone1 int, id int PRIMARY KEY, gone2 text, name text")
            .after("ALTER TABLE {table} DROP gone1, DROP gone2, ADD late text DEFAULT 'given'"),
        Table::new("shapes.identity", &["id"], "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text"),
    ];
    let mut world = World::builder().tables(tables).start().await;
    world.configuration.set("source.chunk_rows_max", 7);
    world
        .in_source(
            "INSERT INTO shapes.bare SELECT i % 10, 'b' || i FROM generate_series(1, 100) i;
             INSERT INTO shapes.made (id, a, z) SELECT i, i, 'z' FROM generate_series(1, 100) i;
             INSERT INTO shapes.gone (id, name) SELECT i, 'n' FROM generate_series(1, 100) i;
             INSERT INTO shapes.identity (name) SELECT 'n' || i FROM generate_series(1, 100) i",
        )
        .await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    world
        .in_source(
            "INSERT INTO shapes.empty VALUES (1, 'first'); UPDATE shapes.bare SET a = a + 100 WHERE a = 3;
             UPDATE shapes.made SET a = -a WHERE id % 2 = 0; DELETE FROM shapes.gone WHERE id % 3 = 0;
             UPDATE shapes.gone SET late = NULL WHERE id % 5 = 0; UPDATE shapes.identity SET name = 'x' WHERE id > 90",
        )
        .await;
    world.ends_equal(run).await;
}

/// A parent is read without its children's rows, which stand in topics of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_and_its_children_are_tables_of_their_own() {
    let parent = Table::new("public.things", &["id"], "id int PRIMARY KEY, name text");
    let child = Table::new("public.big_things", &["id"], "size int, PRIMARY KEY (id)) INHERITS (things");
    let mut world = World::builder().tables([parent.clone(), child.clone()]).start().await;
    world.configuration.set("source.chunk_rows_max", 7);
    world
        .in_source(
            "INSERT INTO things SELECT i, 'parent' FROM generate_series(1, 50) i;
             INSERT INTO big_things (id, name, size) SELECT i, 'child', i FROM generate_series(126, 180) i",
        )
        .await;
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    for table in ["public.things", "public.big_things"] {
        run.logs(&format!("loaded table={table}"), WITHIN).await.expect("each is loaded");
    }
    world
        .in_source("UPDATE things SET name = name || '!' WHERE id % 2 = 0; DELETE FROM ONLY things WHERE id % 5 = 0")
        .await;
    world.until_equal().await;
    let target = world.target(Role::Superuser).await;
    let own: i64 = target.query_one("SELECT count(*) FROM ONLY things", &[]).await.expect("it answers").get(0);
    assert_eq!(own, 40, "rows of the child are not the parent's");
    let reads = |records: &harness::oracle::topic::Records| {
        records.rows().filter(|record| record.event().is_ok_and(|event| event.op == "r")).count()
    };
    assert_eq!((reads(&world.topic(&parent).await), reads(&world.topic(&child).await)), (50, 55));
    world.check_nothing_parked(&["rdb"]).await;
    run.stop().await.expect("it ends");
    world.finish().await;
}
