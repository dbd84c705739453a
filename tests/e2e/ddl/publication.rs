//! What is done to the publication under way.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_table_taken_out_of_the_publication_stops_it() {
    let mut world = world(items()).await;
    world.expect_log("changed without being sent");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let name = publication(&world);
    world.in_source(&format!("ALTER PUBLICATION {name} DROP TABLE items")).await;
    stops(&mut world, &mut source, &["public.items is not in the publication", "ADD TABLE"]).await;
    world.in_source("UPDATE items SET name = 'unseen' WHERE id < 10").await;

    // Put back, what was changed meanwhile is still missing.
    world.in_source(&format!("ALTER PUBLICATION {name} ADD TABLE items")).await;
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &["its entry in the publication is another one"]).await;
    source.restart_with(told(&world, "source.on_rewrite", "reload")).expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

/// PostgreSQL 18 does not fail on a publication that is gone, but leaves out its changes without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_gone_stops_it() {
    let mut world = world(items()).await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let name = publication(&world);
    // PostgreSQL 18 at least warns of it.
    world.expect_log("skipped loading publication");
    world.in_source(&format!("DROP PUBLICATION {name}")).await;
    let writer = Writer::start(&world).await;
    stops(&mut world, &mut source, &["publication"]).await;
    drop(writer);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_of_fewer_operations_stops_it() {
    let mut world = world(items()).await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let name = publication(&world);
    world.in_source(&format!("ALTER PUBLICATION {name} SET (publish = 'insert, update')")).await;
    stops(&mut world, &mut source, &["leaves out delete, truncate"]).await;
    world.finish().await;
}

/// What was left out between two looks of the watch is nowhere in the stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_of_fewer_operations_for_a_moment_is_seen() {
    let mut world = world(items()).await;
    world.configuration.set("source.watch_seconds", 3600);
    world.expect_log("changed without being sent");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let name = publication(&world);
    let alter = |publish: &str| format!("ALTER PUBLICATION {name} SET (publish = '{publish}')");
    world.in_source(&alter("insert")).await;
    world.in_source("UPDATE items SET name = 'unseen' WHERE id < 10").await;
    world.in_source(&alter("insert, update, delete, truncate")).await;
    source.stop().await.expect("it ends");
    source.restart().expect("it starts again");
    stops(&mut world, &mut source, &["the publication was altered", "source.on_rewrite"]).await;
    source.restart_with(told(&world, "source.on_rewrite", "reload")).expect("it starts again");
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn row_filters_and_column_lists_are_changes_of_what_is_published() {
    let mut world = world(items()).await;
    if version(&world.source(Role::Superuser).await).await < 150_000 {
        return world.finish().await;
    }
    world.configuration.set("source.on_rewrite", "reload");
    world.expect_log("changed without being sent");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let name = publication(&world);
    let writer = Writer::start(&world).await;
    for what in ["items (id, name, size)", "items WHERE (id > 0)", "items"] {
        let before = schemas(&world, &world.tables[0]).await.0;
        world.in_source(&format!("ALTER PUBLICATION {name} SET TABLE {what}")).await;
        world
            .until("it is seen", SEEN_WITHIN, async || {
                let now = schemas(&world, &world.tables[0]).await.0;
                if now > before { Ok(()) } else { Err(format!("{now} events")) }
            })
            .await;
    }
    drop(writer);
    world.until_published().await;
    source.stop().await.expect("it ends");
    world.finish().await;
}
