//! The slot's keeper: an idle slot moves on while others write, and whatever becomes of a slot is said with its remedy.

mod alarm;
mod carry;
mod command;
mod fate;
mod idle;

use std::time::Duration;

use harness::World;
use harness::process::Output;
use harness::servers::Role;
use harness::table::Table;

const READY_WITHIN: Duration = Duration::from_secs(90);

fn users() -> Table {
    Table::new("public.users", &["id"], "id bigint PRIMARY KEY, name text")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|cause| panic!("{cause}: {output:?}"))
}

/// Writes whole segments of WAL and a checkpoint, which takes away what nobody may hold back any more.
async fn write_segments(world: &World, count: usize) {
    let client = world.source(Role::Superuser).await;
    for _ in 0..count {
        let one = "SELECT pg_logical_emit_message(false, 'filler', 'x'); SELECT pg_switch_wal()";
        client.batch_execute(one).await.expect("the source switches its WAL");
    }
    client.batch_execute("CHECKPOINT").await.expect("the source makes a checkpoint");
}
