//! What PostgreSQL does not decode, or only at a price: in the schemas of the published tables, and in these tables.
//!
//! Nothing of it stops the source. It is what people miss on the other side.

use std::collections::BTreeSet;

use postgres::{Client, Error, quote};
use service::few;

use super::Checks;
use super::catalog::Tables;

/// So many names are listed.
const NAMES_MAX: usize = 5;

/// All relations of the schemas, with what makes each of them special.
const RELATIONS: &str = "
    SELECT format('%s.%s', n.nspname, c.relname), c.relkind::text, c.relpersistence::text,
           EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
                   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END),
           c.relreplident::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ANY ($1) AND c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S') AND c.relpersistence <> 't' AND NOT c.relispartition
    ORDER BY 1";

/// What of the published tables costs more, or comes without.
const PUBLISHED: &str = "
    SELECT c.relreplident = 'f', c.relkind = 'p',
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '' ORDER BY a.attnum)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2";

/// One relation that stands in a schema of ours.
struct Relation {
    name: String,
    kind: String,
    persistence: String,
    has_key: bool,
    identity: String,
}

/// Looks at everything beside the published tables, then at these.
pub(super) async fn check(
    checks: &mut Checks,
    client: &Client,
    config: &source::Config,
    tables: &Tables,
) -> Result<(), Error> {
    let query = "SELECT EXISTS (SELECT FROM pg_largeobject_metadata)";
    let row = client.query_one(query, &[]).await.map_err(|cause| Error::statement("look for large objects", cause))?;
    let remedy = "move them by themselves (pg_dump --large-objects), or keep their bytes in a bytea column";
    let found = if row.get(0) { "there are some, and they are not carried" } else { "none" };
    checks.prefer(!row.get::<_, bool>(0), "large objects", found, remedy);

    let schemas: BTreeSet<&str> = tables.keys().map(|table| table.schema.as_str()).collect();
    let schemas: Vec<&str> = schemas.into_iter().collect();
    let rows = client.query(RELATIONS, &[&schemas]).await;
    let rows = rows.map_err(|cause| Error::statement("look at the schemas of the tables", cause))?;
    let published: BTreeSet<String> = tables.keys().map(ToString::to_string).collect();
    let relation = |row: &postgres::tokio_postgres::Row| Relation {
        name: row.get(0),
        kind: row.get(1),
        persistence: row.get(2),
        has_key: row.get(3),
        identity: row.get(4),
    };
    let beside: Vec<Relation> =
        rows.iter().map(relation).filter(|relation| !published.contains(&relation.name)).collect();
    judge(checks, &beside);

    let query = "SELECT pubviaroot FROM pg_publication WHERE pubname = $1";
    let failed = |cause| Error::statement("look at how the tables are published", cause);
    let is_via_root =
        client.query_opt(query, &[&config.publication]).await.map_err(failed)?.is_none_or(|row| row.get(0));
    for name in tables.keys() {
        let Some(row) = client.query_opt(PUBLISHED, &[&name.schema, &name.table]).await.map_err(failed)? else {
            continue;
        };
        let (is_full, is_partitioned, generated): (bool, bool, Vec<String>) = (row.get(0), row.get(1), row.get(2));
        let table = quote::table(name);
        if is_full && !config.keys.contains_key(name) {
            checks.warn(
                format!("table {name}, identity"),
                "REPLICA IDENTITY FULL: each update and delete carries the whole old row, in the WAL and in Kafka",
                format!("ALTER TABLE {table} REPLICA IDENTITY DEFAULT, if a primary key or a unique index will do"),
            );
        }
        if !generated.is_empty() {
            checks.warn(
                format!("table {name}, generated columns"),
                format!(
                    "{} are not carried, unless the publication says so (18 and later, stored ones)",
                    few(&generated, NAMES_MAX)
                ),
                "let the target generate them itself: where they are plain columns there, nothing arrives in them",
            );
        }
        if is_partitioned && !is_via_root {
            let publication = quote::identifier(&config.publication);
            checks.fault(
                format!("table {name}, partitions"),
                "published leaf by leaf, so no row would stand under its name",
                format!("ALTER PUBLICATION {publication} SET (publish_via_partition_root = true)"),
            );
        }
    }
    Ok(())
}

fn judge(checks: &mut Checks, beside: &[Relation]) {
    let names = |is: &dyn Fn(&Relation) -> bool| -> Vec<String> {
        beside.iter().filter(|relation| is(relation)).map(|relation| relation.name.clone()).collect()
    };
    let is_table = |relation: &Relation| matches!(relation.kind.as_str(), "r" | "p");
    let mut tell = |what: &str, names: Vec<String>, found: &str, remedy: &str| {
        if !names.is_empty() {
            checks.warn(what, format!("{} {found}", few(&names, NAMES_MAX)), remedy);
        }
    };
    let unlogged = names(&|relation| is_table(relation) && relation.persistence == "u");
    tell("unlogged tables", unlogged, "write no WAL and cannot be carried", "ALTER TABLE … SET LOGGED, if they matter");
    let foreign = names(&|relation| relation.kind == "f");
    tell("foreign tables", foreign, "have their rows elsewhere and cannot be carried", "read them where they are");
    let keyless = names(&|relation| {
        is_table(relation) && relation.persistence == "p" && (!relation.has_key || relation.identity == "n")
    });
    tell(
        "tables without a key",
        keyless,
        "could not be published",
        "give them a primary key, or a unique index over columns that are NOT NULL as REPLICA IDENTITY, or REPLICA IDENTITY FULL and a key in source.keys, before they are",
    );
    let sequences = names(&|relation| relation.kind == "S");
    tell(
        "sequences",
        sequences,
        "are not carried: the target's stay where they are",
        "set them when the target takes over: SELECT setval(…) with the source's last_value",
    );
    let views = names(&|relation| matches!(relation.kind.as_str(), "v" | "m"));
    if !views.is_empty() {
        checks.good("views", format!("{} are not carried: their definitions are the target's", few(&views, NAMES_MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    fn relation(name: &str, kind: &str, persistence: &str, has_key: bool) -> Relation {
        Relation {
            name: name.into(),
            kind: kind.into(),
            persistence: persistence.into(),
            has_key,
            identity: "d".into(),
        }
    }

    #[test]
    fn what_is_not_carried_is_told_by_its_kind() {
        let mut checks = Checks::of("source");
        judge(&mut checks, &[relation("public.sound", "r", "p", true)]);
        assert!(checks.list.is_empty());
        judge(
            &mut checks,
            &[
                relation("a.unlogged", "r", "u", true),
                relation("a.foreign", "f", "p", false),
                relation("a.keyless", "p", "p", false),
                relation("a.sequence", "S", "p", false),
                relation("a.view", "m", "p", false),
            ],
        );
        let told: Vec<_> = checks.list.iter().map(|check| (check.what.as_str(), check.grade)).collect();
        let warned = ["unlogged tables", "foreign tables", "tables without a key", "sequences"];
        let expected: Vec<_> =
            warned.map(|what| (what, Grade::Warning)).into_iter().chain([("views", Grade::Good)]).collect();
        assert_eq!(told, expected);
        assert!(checks.list[2].found.starts_with("a.keyless "), "{:?}", checks.list);
    }
}
