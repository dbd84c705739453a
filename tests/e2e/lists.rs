//! The list of tables and publications changes between two runs, and no change is lost, doubled or told by the wrong list.

use std::time::Duration;

use harness::World;
use harness::oracle::{audit, tables, topic};
use harness::process::{Part, Tributary};
use harness::servers::Role;
use harness::table::{Table, quote};
use harness::workload::{self, Pace, Shape, Workload};

use super::bad_input::refuses;

const READY_WITHIN: Duration = Duration::from_secs(90);

const PACE: Pace = Pace { writers: 3, transactions_per_second: 30 };

fn write(world: &World, shapes: &[Shape]) -> Workload {
    Workload::start(world.source_address(), &world.source_database(), world.seed, PACE, shapes)
}

/// Tells the processes to come which tables to publish.
fn list(world: &mut World, tables: &[&Table]) {
    let names: Vec<String> = tables.iter().map(|table| table.name.to_string()).collect();
    world.configuration.set("source.tables", names);
}

/// Its owner may make publications.
pub(super) fn as_owner(world: &mut World) {
    let url = world.source_address().url(Role::Superuser, &world.source_database());
    world.configuration.set("source.url", url).environment("TRIBUTARY_SOURCE__PASSWORD", Role::Superuser.password());
}

async fn alter_publication(world: &World, how: &str) {
    world.in_source(&format!("ALTER PUBLICATION {} {how}", quote(&world.slot()))).await;
}

async fn again(world: &mut World, process: &mut Tributary, part: Part) -> Tributary {
    process.stop().await.expect("it ends");
    world.start(part)
}

/// The list has changed once the source streams for the second time in a life.
async fn goes_over(source: &mut Tributary) {
    source
        .logs("beginning again: the list of tables or publications has changed", READY_WITHIN)
        .await
        .expect("it goes over");
    source.ready(READY_WITHIN).await.expect("it streams by the new list");
}

/// A table comes while it is written to, by transactions that began before anybody knew that it would: one runs, one is
/// prepared. What they wrote before is not in the stream, and what they write afterwards is.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_added_while_transactions_straddle_its_publication() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let mut world = World::builder().table(accounts.table().clone()).start().await;
    world.make(people.table()).await;
    as_owner(&mut world);
    world.configuration.set("source.chunk_rows_max", 40);
    let source = world.source(Role::Superuser).await;
    workload::fill(&source, world.seed, &[accounts.clone(), people.clone()], 300).await.expect("the tables take rows");
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    let slot = format!("{}_audit", world.prefix());
    audit::start(&source, &slot).await.expect("a slot for the audit");
    let writers = write(&world, &[accounts.clone(), people.clone()]);

    let straddler = world.source(Role::Application).await;
    let insert = |id: &str| format!("INSERT INTO people (email, name) VALUES ('straddles {id}', 'before')");
    let begin = format!("BEGIN; {}; {}", insert("first"), insert("gone"));
    straddler.batch_execute(&begin).await.expect("rows are written");
    let prepare = format!("BEGIN; {}; PREPARE TRANSACTION 'straddles'", insert("prepared"));
    world.in_source(&prepare).await;

    list(&mut world, &[accounts.table(), people.table()]);
    let mut run = again(&mut world, &mut run, Part::Run).await;
    run.logs("transactions that began to write before", READY_WITHIN).await.expect("it waits for them");
    run.logs("prepared transaction \"straddles\"", READY_WITHIN).await.expect("it names them");
    let end = format!(
        "{}; DELETE FROM people WHERE email = 'straddles gone'; UPDATE people SET name = 'after' WHERE email LIKE 'straddles%'; COMMIT",
        insert("second")
    );
    straddler.batch_execute(&end).await.expect("it commits");
    world.in_source("COMMIT PREPARED 'straddles'").await;
    goes_over(&mut run).await;
    writers.after(300).await.expect("the writers write");

    world.until_audit_agrees(&slot).await;
    world.tables.push(people.table().clone());
    world.ends_equal(run).await;
}

/// A table goes and comes back. Its topic goes on; what was deleted in between is known from nothing but the new load, which
/// begins with a truncate.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_removed_and_comes_back() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let both = [accounts.clone(), people.clone()];
    let mut world = World::builder().tables(workload::tables_of(&both)).start().await;
    let source = world.source(Role::Superuser).await;
    workload::fill(&source, world.seed, &both, 200).await.expect("the tables take rows");
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    write(&world, &both).after(100).await.expect("the writers write");
    world.until_equal().await;

    list(&mut world, &[accounts.table()]);
    let mut run = again(&mut world, &mut run, Part::Run).await;
    goes_over(&mut run).await;
    assert!(run.log().contains("ALTER PUBLICATION"), "the remedy is told:\n{}", run.tail());
    alter_publication(&world, "DROP TABLE people").await;
    let writers = write(&world, &both);
    world.in_source("DELETE FROM people WHERE random() < 0.5").await;
    writers.after(100).await.expect("the writers write");
    world.tables.pop();
    world.until_equal().await;
    world.check_topics().await;

    alter_publication(&world, "ADD TABLE people").await;
    list(&mut world, &[accounts.table(), people.table()]);
    run.stop().await.expect("it ends");
    let mut publisher = world.start(Part::Source);
    let writers = write(&world, &both);
    goes_over(&mut publisher).await;
    writers.after(100).await.expect("the writers write");
    world.tables.push(people.table().clone());
    world.until_published().await;
    let mut sink = world.start(Part::Sink);
    world.until_equal().await;
    world.check_nothing_parked(&["rdb"]).await;
    sink.stop().await.expect("it ends");
    publisher.stop().await.expect("it ends");
    world.finish().await;
}

/// Another publication, made while a transaction is open that began without it.
#[tokio::test(flavor = "multi_thread")]
async fn the_publication_gets_another_name() {
    let both = [workload::accounts(), workload::people()];
    let mut world = World::builder().tables(workload::tables_of(&both)).start().await;
    let source = world.source(Role::Superuser).await;
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    let slot = format!("{}_audit", world.prefix());
    audit::start(&source, &slot).await.expect("a slot for the audit");
    let writers = write(&world, &both);
    let straddler = world.source(Role::Application).await;
    let begin = "BEGIN; INSERT INTO accounts (id, owner) VALUES (1001, 'straddles')";
    straddler.batch_execute(begin).await.expect("a row is written");
    world
        .in_source("CREATE PUBLICATION another FOR TABLE accounts, people WITH (publish_via_partition_root = true)")
        .await;

    world.configuration.set("source.publication", "another");
    let mut publisher = again(&mut world, &mut publisher, Part::Source).await;
    publisher.logs("transactions that began to write before", READY_WITHIN).await.expect("it waits for them");
    straddler.batch_execute("UPDATE accounts SET owner = 'ends' WHERE id = 1001; COMMIT").await.expect("it commits");
    goes_over(&mut publisher).await;
    writers.after(200).await.expect("the writers write");
    world.until_published().await;
    world.until_audit_agrees(&slot).await;
    // The old one is of no use any more.
    world.in_source(&format!("DROP PUBLICATION {}", quote(&world.slot()))).await;
    let mut publisher = again(&mut world, &mut publisher, Part::Source).await;
    publisher.ready(READY_WITHIN).await.expect("it goes on");
    world.in_source("DELETE FROM accounts WHERE id = 1001").await;
    world.until_published().await;
    publisher.stop().await.expect("it ends");
    world.finish().await;
}

/// What was written under a publication that is gone can be had no more: up to 17 the server refuses, from 18 on it leaves it
/// out without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_was_dropped_before_its_successor_took_over_is_told() {
    let accounts = workload::accounts();
    let mut world = World::builder().table(accounts.table().clone()).start().await;
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    publisher.stop().await.expect("it ends");
    let old = quote(&world.slot());
    world.in_source(&format!("DROP PUBLICATION {old}; CREATE PUBLICATION another FOR TABLE accounts")).await;
    world.in_source("INSERT INTO accounts (id) VALUES (1)").await;
    let configuration = world.configuration.clone();
    for publication in [world.slot(), "another".to_owned()] {
        let mut configuration = configuration.clone();
        configuration.set("source.publication", publication);
        refuses(&mut world, Part::Source, configuration, &["was dropped", "load again under a new prefix"]).await;
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_renamed_goes_on_in_its_topic_once_its_new_name_is_listed() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let mut world = World::builder().tables(workload::tables_of(&[accounts.clone(), people.clone()])).start().await;
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    write(&world, &[accounts.clone(), people.clone()]).after(60).await.expect("the writers write");
    world.until_published().await;
    publisher.stop().await.expect("it ends");
    world.in_source("ALTER TABLE people RENAME TO persons; INSERT INTO persons (email) VALUES ('renamed')").await;
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Source, configuration, &["public.people is called public.persons now"]).await;

    world.configuration.set("source.tables", vec!["public.accounts", "public.persons"]);
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    world.in_source("UPDATE persons SET name = 'after'; DELETE FROM accounts WHERE id % 2 = 0").await;
    let topic = world.topic_name(people.table());
    let source = world.source(Role::Superuser).await;
    let renamed = Table { name: "public.persons".parse().expect("a name"), ..people.table().clone() };
    world
        .until("the topic agrees with the renamed table", READY_WITHIN, async || {
            let records = topic::read(world.kafka(), &topic).await.map_err(|cause| format!("{cause:?}"))?;
            records.check()?;
            tables::compare_rows(&source, &renamed, &records.fold()?).await
        })
        .await;
    assert!(!publisher.log().contains("beginning again"), "no list has changed:\n{}", publisher.tail());
    publisher.stop().await.expect("it ends");
    world.finish().await;
}

/// Another table under the same name is not the one that was published.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_made_again_stops_or_takes_the_place_of_the_old_one() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let both = [accounts.clone(), people.clone()];
    let mut world = World::builder().tables(workload::tables_of(&both)).start().await;
    as_owner(&mut world);
    let mut run = world.start(Part::Run);
    run.ready(READY_WITHIN).await.expect("it streams");
    write(&world, &both).after(60).await.expect("the writers write");
    world.until_equal().await;
    run.stop().await.expect("it ends");
    world.in_source(&format!("DROP TABLE people; {}; GRANT ALL ON people TO application", people.table().ddl())).await;
    let configuration = world.configuration.clone();
    refuses(&mut world, Part::Source, configuration, &["was dropped and made again", "source.on_recreate"]).await;

    world.configuration.set("source.on_recreate", "reload");
    world.expect_log("it is loaded in place of what was published");
    let writers = write(&world, &both);
    let mut publisher = world.start(Part::Source);
    goes_over(&mut publisher).await;
    writers.after(60).await.expect("the writers write");
    world.until_published().await;
    let mut sink = world.start(Part::Sink);
    world.until_equal().await;
    sink.stop().await.expect("it ends");
    publisher.stop().await.expect("it ends");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_others_go_on_without_a_table_that_was_dropped() {
    let both = [workload::accounts(), workload::people()];
    let mut world = World::builder().tables(workload::tables_of(&both)).start().await;
    world.expect_log("public.people was dropped");
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    write(&world, &both).after(60).await.expect("the writers write");
    world.until_published().await;
    publisher.stop().await.expect("it ends");
    world.in_source("DROP TABLE people").await;
    world.tables.pop();
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    publisher.logs("public.people was dropped", READY_WITHIN).await.expect("it says so");
    write(&world, &both[..1]).after(60).await.expect("the writers write");
    world.until_published().await;

    list(&mut world, &[both[0].table()]);
    let mut publisher = again(&mut world, &mut publisher, Part::Source).await;
    goes_over(&mut publisher).await;
    world.in_source("DELETE FROM accounts WHERE id % 2 = 0").await;
    world.until_published().await;
    publisher.stop().await.expect("it ends");
    world.finish().await;
}

/// The source dies between any two steps of a change, and once the server does, when it has forgotten how far the slot was:
/// what it remembers lies before the publication was made.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_changes_once_whatever_dies_between_its_steps() {
    let (accounts, people) = (workload::accounts(), workload::people());
    let mut world = World::builder().table(accounts.table().clone()).own_source().start().await;
    world.expect_log("WARN");
    world.make(people.table()).await;
    let source = world.source(Role::Superuser).await;
    workload::fill(&source, world.seed, std::slice::from_ref(&people), 100).await.expect("the table takes rows");
    let mut publisher = world.start(Part::Source);
    publisher.ready(READY_WITHIN).await.expect("it streams");
    let slot = format!("{}_audit", world.prefix());
    audit::start(&source, &slot).await.expect("a slot for the audit");
    source.batch_execute("CHECKPOINT").await.expect("the slot is on disk");
    let writers = write(&world, &[accounts.clone(), people.clone()]);
    world.in_source("CREATE PUBLICATION another FOR TABLE accounts, people").await;
    publisher.stop().await.expect("it ends");

    list(&mut world, &[accounts.table(), people.table()]);
    world.configuration.set("source.publication", "another");
    for point in ["list-topics", "list-publication", "list-waited", "list-emitted", "before-ending"] {
        let mut configuration = world.configuration.clone();
        configuration.environment("TRIBUTARY_FAILPOINTS", &format!("{point}=kill"));
        let mut publisher = world.start_with(Part::Source, configuration);
        publisher.ends(READY_WITHIN).await.expect("it dies at the point");
        assert!(publisher.log().contains(&format!("failpoint {point}")), "{}", publisher.tail());
    }
    let mut publisher = world.start(Part::Source);
    goes_over(&mut publisher).await;
    writers.after(200).await.expect("the writers write");
    world.until_published().await;
    world.until_audit_agrees(&slot).await;

    let confirmed = confirmed(&world).await;
    let server = world.own_source.as_mut().expect("the test has its own");
    server.kill9().await.expect("it dies");
    server.restart().await.expect("it comes back");
    world.in_source("DELETE FROM accounts WHERE id % 2 = 0; DELETE FROM people WHERE random() < 0.5").await;
    world.tables.push(people.table().clone());
    world.until_published().await;
    println!("the slot stood at {confirmed} before the server died");
    publisher.stop().await.expect("it ends");
    world.finish().await;
}

async fn confirmed(world: &World) -> String {
    let query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let source = world.source(Role::Superuser).await;
    source.query_one(query, &[&world.slot()]).await.expect("the slot is there").get(0)
}
