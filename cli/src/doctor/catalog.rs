//! What a table is like, as the catalog of either side tells it.

use std::collections::BTreeMap;

use postgres::{Client, Error};
use schemas::TableName;

/// Tables by name; one that is not there is not in it.
pub(super) type Tables = BTreeMap<TableName, Table>;

/// A table of the source or the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// `r` table, `p` partitioned, and others.
    pub(super) kind: String,
    /// `p` permanent, `u` unlogged, `t` temporary.
    pub(super) persistence: String,
    /// PostgreSQL's letter.
    pub(super) replica_identity: String,
    /// Whether our role owns it, itself or by membership.
    pub(super) is_owned: bool,
    /// What our role may do with it, of SELECT, INSERT, UPDATE, DELETE, TRUNCATE.
    pub(super) privileges: Vec<String>,
    /// Columns that are not generated, in order.
    pub(super) columns: Vec<String>,
    /// Columns that can be NULL.
    pub(super) nullable: Vec<String>,
    /// Columns that need a value: not null, no default, not generated.
    pub(super) required: Vec<String>,
    /// The columns of the replica identity, or of the primary key where the identity has none of its own. Empty: none that
    /// could be used.
    pub(super) key: Vec<String>,
    /// The columns of each unique index that is valid, immediate and whole.
    pub(super) unique: Vec<Vec<String>>,
}

const QUERY: &str = "
    SELECT c.relkind::text, c.relpersistence::text, c.relreplident::text, pg_has_role(c.relowner, 'USAGE'),
           ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p WHERE has_table_privilege(c.oid, p)),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                   AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' ORDER BY a.attnum),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.attnotnull ORDER BY a.attnum)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2";

const INDEXES: &str = "
    SELECT i.indisprimary, i.indisreplident,
           ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (number, place)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
                 WHERE k.place <= i.indnkeyatts ORDER BY k.place)
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2
      AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL";

/// Reads the named tables.
pub(super) async fn read(client: &Client, names: &[TableName]) -> Result<Tables, Error> {
    let mut tables = Tables::new();
    for name in names {
        let failed = |cause| Error::statement(format!("read what {name} is like"), cause);
        let Some(row) = client.query_opt(QUERY, &[&name.schema, &name.table]).await.map_err(failed)? else { continue };
        let indexes = client.query(INDEXES, &[&name.schema, &name.table]).await.map_err(failed)?;
        let replica_identity: String = row.get(2);
        let is_key = |index: &&postgres::tokio_postgres::Row| match replica_identity.as_str() {
            "i" => index.get::<_, bool>(1),
            "n" => false,
            _ => index.get::<_, bool>(0),
        };
        let key = indexes.iter().find(is_key).map(|index| index.get(2)).unwrap_or_default();
        let table = Table {
            kind: row.get(0),
            persistence: row.get(1),
            is_owned: row.get(3),
            privileges: row.get(4),
            columns: row.get(5),
            required: row.get(6),
            nullable: row.get(7),
            key,
            unique: indexes.iter().map(|index| index.get(2)).collect(),
            replica_identity,
        };
        tables.insert(name.clone(), table);
    }
    Ok(tables)
}

impl Table {
    /// Whether PostgreSQL replicates such a thing at all.
    pub(super) fn is_replicated(&self) -> bool {
        matches!(self.kind.as_str(), "r" | "p") && self.persistence == "p"
    }

    pub(super) fn may(&self, privilege: &str) -> bool {
        self.privileges.iter().any(|held| held == privilege)
    }

    /// Whether a unique index stands on exactly these columns, in any order.
    pub(super) fn is_unique_on(&self, columns: &[String]) -> bool {
        self.unique.iter().any(|unique| is_same(unique, columns))
    }

    /// Whether these columns are its key, in any order.
    pub(super) fn is_own_key(&self, columns: &[String]) -> bool {
        is_same(&self.key, columns)
    }
}

fn is_same(one: &[String], other: &[String]) -> bool {
    let sorted = |columns: &[String]| {
        let mut columns = columns.to_vec();
        columns.sort();
        columns
    };
    sorted(one) == sorted(other)
}
