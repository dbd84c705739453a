//! Tables that are called otherwise, go, or come again.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_table_goes_on_in_its_topic() {
    let mut world = world(items()).await;
    world.expect_log("is called public.things now");
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    world.in_source("ALTER TABLE items RENAME TO things").await;
    source.logs("is called public.things now", SEEN_WITHIN).await.expect("a person is told");
    world.in_source("UPDATE things SET name = 'renamed' WHERE id < 100").await;
    world
        .until("the rows stand in the topic", SEEN_WITHIN, async || {
            let records = world.topic(&world.tables[0]).await;
            let rows = records.fold()?;
            let renamed = rows.iter().filter(|row| row["name"].as_deref() == Some("renamed")).count();
            if renamed == 99 { Ok(()) } else { Err(format!("{renamed} rows")) }
        })
        .await;
    source.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_dropped_and_made_again_is_told_of_under_way() {
    let mut world = world(items()).await;
    let mut source = world.start(Part::Source);
    source.ready(READY_WITHIN).await.expect("it streams");
    world.until_published().await;
    let name = publication(&world);
    world
        .in_source(&format!(
            "BEGIN; ALTER TABLE items RENAME TO former; CREATE TABLE items (LIKE former INCLUDING ALL); DROP TABLE former;
             GRANT SELECT ON items TO {}; ALTER PUBLICATION {name} ADD TABLE items; COMMIT",
            Role::Source.name()
        ))
        .await;
    stops(&mut world, &mut source, &["public.items was dropped and made again"]).await;
    world.finish().await;
}
