//! What a publication carries of a table, as SQL over the catalog's own tables.
//!
//! Pure: texts alone. `pg_publication_tables` would say the same, but from 16 on the function behind it opens each table of
//! the publication: whoever asks it waits for as long as anybody alters any of them, and can come to a deadlock with him.

/// Joins for a table `c`: the publication `p` that `$2` names, its entry `r` for the table, and in `u` whether the publication
/// has the table `itself`, or one `above` of which it is a partition.
const JOINS: &str = "
    LEFT JOIN pg_publication p ON p.pubname = $2
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
    CROSS JOIN LATERAL (
        SELECT coalesce(p.puballtables, false) OR r.oid IS NOT NULL OR {schema} IS NOT NULL AS itself,
               c.relispartition AND EXISTS (
                   SELECT FROM pg_partition_ancestors(c.oid) x (oid) JOIN pg_class c ON c.oid = x.oid
                   WHERE x.oid <> r.own AND (p.puballtables OR {schema} IS NOT NULL
                         OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = x.oid))) AS above
        FROM (SELECT r.oid, c.oid AS own) r) u";

/// Whether the publication has the table, behind [`joins`].
pub const IS_PUBLISHED: &str =
    "p.oid IS NOT NULL AND CASE WHEN p.pubviaroot THEN NOT u.above AND u.itself ELSE u.above OR u.itself END";

/// Whether it is published under its own name and not as a part of another, or by its partitions; behind [`joins`].
pub const BY_ITSELF: &str = "(p.pubviaroot OR c.relkind <> 'p') AND c.relpersistence = 'p'";

/// The tables that a publication carries: OID, schema, name. `$1`: the OIDs to look at, or NULL for all; `$2`: its name.
pub fn tables(version: u32) -> String {
    // Below that number are the system's own, which are in no publication.
    format!(
        "SELECT c.oid, n.nspname::text, c.relname::text
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace{}
         WHERE ($1::oid[] IS NULL OR c.oid = ANY ($1)) AND c.oid >= 16384 AND c.relkind IN ('r', 'p') AND {BY_ITSELF} AND {IS_PUBLISHED}",
        joins(version)
    )
}

/// The joins and the condition for the columns `a` of a table `c` that a publication carries. `$1`: the OID, `$2`: its name.
pub fn columns(version: u32) -> String {
    format!("{} WHERE c.oid = $1 AND {BY_ITSELF} AND {IS_PUBLISHED} AND {}", joins(version), carried(version))
}

/// The joins that the others stand behind, for a server of this version.
pub fn joins(version: u32) -> String {
    JOINS.replace("{schema}", schema(version))
}

/// The publication's entry for the table's schema, if it has one.
pub fn schema(version: u32) -> &'static str {
    match version {
        150_000.. => {
            "(SELECT s.oid FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"
        }
        _ => "NULL::oid",
    }
}

/// Whether it carries the column `a`. Generated columns that are stored, and a publication for them: from 18 on.
pub fn carried(version: u32) -> &'static str {
    match version {
        150_000.. => {
            "CASE WHEN r.prattrs IS NULL THEN a.attgenerated = '' OR (a.attgenerated = 's' AND to_jsonb(p) ->> 'pubgencols' = 's')
                  ELSE a.attnum = ANY (r.prattrs::int2[]) END"
        }
        _ => "a.attgenerated = ''",
    }
}

/// The condition for the table's rows. With its schema published as a whole there is none, whatever its own entry says.
pub fn filter(version: u32) -> String {
    match version {
        150_000.. => format!("CASE WHEN {} IS NULL THEN pg_get_expr(r.prqual, r.prrelid) END", schema(version)),
        _ => "NULL::text".to_owned(),
    }
}
