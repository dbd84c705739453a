//! The harness itself: its servers come back with their data, and its oracles see what is wrong with plain SQL and a plain client.

use harness::oracle::{audit, tables};
use harness::servers::{Durability, Postgres, Redis, Role};
use harness::workload::{self, Pace, Workload};
use harness::{Error, World};

#[tokio::test]
async fn a_killed_postgresql_comes_back_with_what_it_acknowledged() -> Result<(), Error> {
    let mut server = Postgres::start(Durability::Full).await?;
    let client = server.address().connect(Role::Superuser, "postgres").await?;
    let sql = "CREATE TABLE kept AS SELECT 1 AS one";
    client.batch_execute(sql).await.map_err(Error::during(sql))?;
    server.kill9().await?;
    server.restart().await?;
    let client = server.address().connect(Role::Superuser, "postgres").await?;
    let row = client.query_one("SELECT one FROM kept", &[]).await.map_err(Error::during("read it again"))?;
    assert_eq!(row.get::<_, i32>(0), 1);
    Ok(())
}

#[tokio::test]
async fn a_killed_redis_comes_back_with_what_it_acknowledged() -> Result<(), Error> {
    let mut server = Redis::start(Durability::Full).await?;
    let mut connection = server.address().connect(0).await?;
    let set = redis::cmd("SET").arg("kept").arg(1).query_async::<()>(&mut connection).await;
    set.map_err(Error::during("SET"))?;
    server.kill9().await?;
    server.restart().await?;
    let mut connection = server.address().connect(0).await?;
    let value = redis::cmd("GET").arg("kept").query_async::<i32>(&mut connection).await;
    assert_eq!(value.map_err(Error::during("GET"))?, 1);
    Ok(())
}

/// The workload runs, PostgreSQL's own subscription carries it over, and the oracle agrees; then one byte differs.
#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_tells_equal_tables_from_different_ones() {
    let shapes = workload::all();
    let world = World::builder().tables(workload::tables()).start().await;
    let (source, target) = (world.source(Role::Superuser).await, world.target(Role::Superuser).await);
    workload::fill(&source, world.seed, &shapes, 100).await.expect("the tables take rows");
    let subscribe = format!(
        "CREATE SUBSCRIPTION {0} CONNECTION 'host=127.0.0.1 port={1} user=postgres password={2} dbname={3}' \
         PUBLICATION {0} WITH (slot_name = {0}, create_slot = false)",
        world.slot(),
        world.source_address().port,
        Role::Superuser.password(),
        world.source_database()
    );
    world.in_source(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", world.slot())).await;
    world.in_target(&subscribe).await;
    audit::start(&source, &format!("{}_audit", world.prefix())).await.expect("a slot for the audit");
    let pace = Pace { writers: 4, transactions_per_second: 100 };
    let writers = Workload::start(world.source_address(), &world.source_database(), world.seed, pace, &shapes);
    let totals = writers.after(400).await.expect("the writers write");
    assert!(totals.committed >= 400 && totals.rolled_back > 0, "{totals:?}");
    world.until_equal().await;

    let changes = audit::changes(&source, &format!("{}_audit", world.prefix()), &world.slot()).await;
    let changes = changes.expect("the audit is read");
    assert_eq!(changes.len(), world.tables.len(), "every table was written to");
    assert!(changes.values().all(|changes| "IUD".chars().all(|kind| changes.iter().any(|change| change.2 == kind))));

    world.in_target("UPDATE shop.prices SET label = coalesce(label, '') || '!' WHERE amount = (SELECT min(amount) FROM shop.prices)").await;
    let prices = world.tables.iter().find(|table| table.name.table == "prices").expect("it is among the tables");
    let fault = tables::compare(&source, &target, prices).await.expect_err("one label differs");
    assert!(fault.contains("1 on the first side alone") && fault.contains("1 on the second side alone"), "{fault}");
    world.in_target(&format!("DROP SUBSCRIPTION {}", world.slot())).await;
    world.finish().await;
}
