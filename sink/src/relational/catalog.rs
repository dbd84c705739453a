//! The target's catalog, read: columns, types, keys, and what would interfere.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use schemas::key::Canonical;
use schemas::{Columns, Selection, TableName};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Executor, Row};

use crate::shape::{Column, ColumnKind, Misfit, Shape, Table};

/// Columns with their base types; `rights` whether we may do what applying takes.
const COLUMNS: &str = "
SELECT n.nspname::text, c.relname::text, a.attname::text, a.attgenerated::text, a.attidentity::text,
       base.oid::int8, pg_catalog.format_type(base.oid, -1), base.typtype::text,
       coalesce(o.collisdeterministic, true),
       pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
         AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE'),
       current_user::text, base.modifier
FROM unnest($1::text[], $2::text[]) AS wanted(s, t)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.s
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.t AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation
CROSS JOIN LATERAL (
    WITH RECURSIVE steps AS (
        SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod, a.atttypmod AS modifier
        FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod, steps.typtypmod
        FROM steps JOIN pg_catalog.pg_type t ON t.oid = steps.typbasetype
        WHERE steps.typtype = 'd'
    )
    SELECT oid, typtype, modifier FROM steps WHERE typtype <> 'd'
) AS base
ORDER BY 1, 2, a.attnum";

/// Unique keys that ON CONFLICT can name, primary ones first, each column with its operator class's own equality: the
/// type may live outside of pg_catalog, where our search path does not look.
const KEYS: &str = "
SELECT n.nspname::text, c.relname::text, i.indexrelid::int8, a.attname::text,
       'OPERATOR(' || pg_catalog.quote_ident(opn.nspname) || '.' || op.oprname || ')'
FROM unnest($1::text[], $2::text[]) AS wanted(s, t)
JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.s
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.t
JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
     AND i.indpred IS NULL AND i.indexprs IS NULL
CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[]) WITH ORDINALITY AS k(attnum, opclass, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
JOIN pg_catalog.pg_opclass oc ON oc.oid = k.opclass
JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amopstrategy = 3
     AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
JOIN pg_catalog.pg_operator op ON op.oid = ao.amopopr
JOIN pg_catalog.pg_namespace opn ON opn.oid = op.oprnamespace
WHERE k.place <= i.indnkeyatts
ORDER BY 1, 2, NOT i.indisprimary, i.indexrelid, k.place";

/// What acts on applied rows unless the session has the replica role: foreign keys that are checked at once or cascade,
/// and triggers of the user's own.
const INTERFERENCE: &str = "
SELECT pg_catalog.format('foreign key %I of %s', k.conname, k.conrelid::regclass)
FROM pg_catalog.pg_constraint k
WHERE k.contype = 'f' AND (k.conrelid = ANY($1::text[]::regclass[]) OR k.confrelid = ANY($1::text[]::regclass[]))
  AND (NOT k.condeferrable OR k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
UNION ALL
SELECT pg_catalog.format('trigger %I of %s', g.tgname, g.tgrelid::regclass)
FROM pg_catalog.pg_trigger g
WHERE NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') AND g.tgrelid = ANY($1::text[]::regclass[])";

/// The tables of one group as the target has them, and the shapes that events gave them.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// Which tables the group takes: a topic may hold others beside them.
    selection: Selection,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// What is looked for.
    names: BTreeSet<TableName>,
    tables: HashMap<TableName, Table>,
    shapes: HashMap<TableName, Arc<Shape>>,
}

impl Catalog {
    /// Nothing is known yet.
    pub(crate) fn new(selection: Selection) -> Catalog {
        Catalog { selection, known: RwLock::default() }
    }

    /// Whether the group takes this table.
    pub(crate) fn takes(&self, name: &TableName) -> bool {
        self.selection.chooses(name)
    }

    /// From now on these tables are read too.
    pub(crate) fn add(&self, names: impl IntoIterator<Item = TableName>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).names.extend(names);
    }

    /// The tables that are read.
    pub(crate) fn names(&self) -> Vec<TableName> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).names.iter().cloned().collect()
    }

    /// Takes what was read of the tables that were asked for; their shapes are made anew.
    pub(crate) fn set(&self, asked: &[TableName], tables: HashMap<TableName, Table>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for name in asked {
            known.tables.remove(name);
            known.shapes.remove(name);
        }
        known.tables.extend(tables);
    }

    /// The shape of a table for events with this key.
    pub(crate) fn shape(&self, name: &TableName, key: &Columns<'_>) -> Result<Arc<Shape>, Misfit> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(shape) = known.shapes.get(name).filter(|shape| shape.serves(key)) {
            return Ok(shape.clone());
        }
        drop(known);
        // Made under the lock that guards the tables: else it could outlive the tables it was made from.
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let table = known.tables.get(name).ok_or_else(|| Misfit::NoTable(name.clone()))?;
        let shape = Arc::new(Shape::new(table, key)?);
        known.shapes.insert(name.clone(), shape.clone());
        Ok(shape)
    }

    /// What is missing for rows of a table with these columns and this key.
    pub(crate) fn misfits(&self, name: &TableName, columns: &[schemas::event::Column], key: &[String]) -> Vec<Misfit> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.tables.get(name) {
            None => vec![Misfit::NoTable(name.clone())],
            Some(table) => table.misfits(columns, key),
        }
    }

    /// What is missing for the tables as such, whatever their rows.
    pub(crate) fn missing(&self) -> Vec<Misfit> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let missing = |name: &TableName| match known.tables.get(name) {
            None => Some(Misfit::NoTable(name.clone())),
            Some(table) if table.keys.is_empty() => Some(Misfit::Keyless { table: name.clone() }),
            Some(table) => table.rights.clone(),
        };
        known.names.iter().filter_map(missing).collect()
    }
}

/// Reads the tables, inside a transaction of the caller's; those that are not there are left out.
pub(super) async fn read(
    connection: &mut PgConnection,
    names: &[TableName],
) -> Result<HashMap<TableName, Table>, sqlx::Error> {
    let schemas: Vec<&str> = names.iter().map(|name| name.schema.as_str()).collect();
    let relations: Vec<&str> = names.iter().map(|name| name.table.as_str()).collect();
    let mut tables: HashMap<TableName, Table> = HashMap::new();
    // Catalogs are small and joined in many ways: our settings for the sink's own statements would mislead the planner.
    connection.execute("SET LOCAL enable_hashjoin = on; SET LOCAL enable_seqscan = on").await?;
    for row in sqlx::query(COLUMNS).bind(&schemas).bind(&relations).fetch_all(&mut *connection).await? {
        let name = TableName::new(row.get::<String, _>(0), row.get::<String, _>(1));
        let table = tables.entry(name.clone()).or_insert_with(|| Table {
            rights: (!row.get::<bool, _>(9)).then(|| no_rights(&name, row.get(10))),
            name,
            columns: Vec::new(),
            keys: Vec::new(),
        });
        table.columns.push(column(&row));
    }
    let mut last = None;
    for row in sqlx::query(KEYS).bind(&schemas).bind(&relations).fetch_all(&mut *connection).await? {
        let name = TableName::new(row.get::<String, _>(0), row.get::<String, _>(1));
        let Some(table) = tables.get_mut(&name) else { continue };
        let index: i64 = row.get(2);
        if last.replace(index) != Some(index) {
            table.keys.push(Vec::new());
        }
        let column: String = row.get(3);
        let place = table.columns.iter().position(|known| known.name == column);
        if let (Some(key), Some(place)) = (table.keys.last_mut(), place) {
            key.push((place, row.get(4)));
        }
    }
    // Behind this the transaction may go on with statements of ours.
    connection.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_seqscan = off").await?;
    Ok(tables)
}

/// What would change or refuse applied rows in a session without the replica role.
pub(super) async fn interference(
    connection: &mut PgConnection,
    names: &[TableName],
) -> Result<Vec<String>, sqlx::Error> {
    let quoted: Vec<String> = names.iter().map(postgres::quote::table).collect();
    let rows = sqlx::query(INTERFERENCE).bind(&quoted).fetch_all(connection).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn column(row: &PgRow) -> Column {
    let (generated, identity, kind): (String, String, String) = (row.get(3), row.get(4), row.get(7));
    let oid = u32::try_from(row.get::<i64, _>(5)).unwrap_or_default();
    let deterministic: bool = row.get(8);
    let canonical = match kind.as_str() {
        "e" => Some(Canonical::Same),
        _ if !deterministic => None,
        _ => Canonical::of_type(oid),
    };
    let kind = match (generated.as_str(), identity.as_str()) {
        ("", "a") => ColumnKind::IdentityAlways,
        ("", _) => ColumnKind::Plain,
        _ => ColumnKind::Generated,
    };
    Column { name: row.get(2), cast: row.get(6), oid, modifier: row.get(11), canonical, kind }
}

fn no_rights(name: &TableName, user: String) -> Misfit {
    let (table, user) = (postgres::quote::table(name), postgres::quote::identifier(&user));
    let sql = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {user}");
    Misfit::NoRights { table: name.clone(), sql }
}
