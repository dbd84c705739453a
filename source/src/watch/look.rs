//! One look at the catalog: the queries behind [`Seen`]. I/O only.

use std::collections::BTreeMap;

use postgres::tokio_postgres::{Client, Row};
use postgres::{Ask, Error, Prepared, quote};
use schemas::TableName;
use schemas::state::{Imprint, ImprintColumn, ImprintFile, ImprintLabel};

use super::{Brought, File, Publication, Seen, Table};
use crate::keys::Named;
use crate::published;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The publication.
    pub publication: &'a str,
    /// The tables by OID, with what the state remembers of them.
    pub tables: &'a BTreeMap<u32, Option<Imprint>>,
    /// Names of tables that are asked for: where one has it no more, whether another table has.
    pub names: &'a BTreeMap<u32, TableName>,
    /// The keys that are named for tables.
    pub named: &'a Named,
    /// Whether new partitions are asked for rows that came with them, which can take a while.
    pub asks_partitions: bool,
}

/// How long a new partition is searched for rows that came with it. One that takes longer is taken to have some.
const SEARCH_MS: u32 = 10_000;

const PUBLICATION: &str = "
    SELECT current_setting('server_version_num')::int4, p.oid IS NOT NULL, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
           CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_insert_lsn() END::text
    FROM (VALUES ($1::text)) v (name) LEFT JOIN pg_publication p ON p.pubname = v.name";

/// What stands in braces is of [`published`].
const TABLES: &str = "
    SELECT c.oid, n.nspname::text, c.relname::text, c.relkind = 'p', c.relpersistence = 'p', c.relreplident::text,
           c.relnatts, greatest(c.reltuples, 0)::int8, {is_published}, coalesce(p.oid, 0),
           coalesce(r.oid, {schema}),
           k.keys, k.named, a.numbers, a.names, a.types, a.bases, a.modifiers, a.rows, a.given, a.defaulted,
           l.enums, l.labels, l.texts, p.xmin::text::int8
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace{joins}
    CROSS JOIN LATERAL (
        SELECT array_agg(array_to_string((i.indkey::int2[])[0:i.indnkeyatts - 1], ',') ORDER BY i.named DESC, i.indexrelid) AS keys,
               coalesce(bool_or(i.named), false) AS named
        FROM (SELECT i.*, CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END AS named FROM pg_index i) i
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
          AND NOT EXISTS (SELECT FROM pg_attribute a
                          WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) AND NOT a.attnotnull)) k
    CROSS JOIN LATERAL (
        SELECT array_agg(a.attnum ORDER BY a.attnum) AS numbers, array_agg(a.attname::text ORDER BY a.attnum) AS names,
               array_agg(a.atttypid ORDER BY a.attnum) AS types, array_agg(b.oid ORDER BY a.attnum) AS bases,
               array_agg(CASE WHEN b.oid = a.atttypid THEN a.atttypmod ELSE b.modifier END ORDER BY a.attnum) AS modifiers,
               array_agg(a.xmin::text::int8 ORDER BY a.attnum) AS rows, array_agg(a.atthasmissing ORDER BY a.attnum) AS given,
               array_agg(a.atthasdef OR a.attidentity <> '' ORDER BY a.attnum) AS defaulted
        FROM pg_attribute a
        CROSS JOIN LATERAL (
            WITH RECURSIVE base AS (
                SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod, a.atttypmod AS modifier FROM pg_type t WHERE t.oid = a.atttypid
                UNION ALL
                SELECT t.oid, t.typtype, t.typbasetype, t.typtypmod, base.typtypmod
                FROM base JOIN pg_type t ON base.typtype = 'd' AND t.oid = base.typbasetype)
            SELECT oid, modifier FROM base WHERE typtype <> 'd') b
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {carried}) a
    CROSS JOIN LATERAL (
        SELECT array_agg(e.enumtypid ORDER BY e.oid) AS enums, array_agg(e.oid ORDER BY e.oid) AS labels,
               array_agg(e.enumlabel::text ORDER BY e.oid) AS texts
        FROM pg_enum e
        WHERE e.enumtypid IN (SELECT unnest(ARRAY[t.oid, t.typelem, t.typbasetype])
                              FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {carried})) l
    WHERE c.oid = ANY ($1)";

/// Where rows lie, with the transaction and the command in it of the youngest link by which a partition belongs to its root.
const FILES: &str = "
    WITH RECURSIVE tree (root, oid, link, command) AS (
        SELECT c.oid, c.oid, NULL::xid, NULL::int8 FROM pg_class c WHERE c.oid = ANY ($1)
        UNION ALL
        SELECT t.root, i.inhrelid, CASE WHEN y.younger THEN i.xmin ELSE t.link END, CASE WHEN y.younger THEN i.cmin::text::int8 ELSE t.command END
        FROM tree t
        JOIN pg_class c ON c.oid = t.oid AND c.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
        CROSS JOIN LATERAL (SELECT t.link IS NULL OR age(i.xmin) < age(t.link)
                                   OR (i.xmin = t.link AND i.cmin::text::int8 > t.command) AS younger) y)
    SELECT t.root, l.oid, l.relfilenode, l.reltoastrelid, l.reltuples < 0, n.nspname::text, l.relname::text, t.link::text, t.command
    FROM tree t JOIN pg_class l ON l.oid = t.oid AND l.relkind = 'r' JOIN pg_namespace n ON n.oid = l.relnamespace
    ORDER BY l.oid";

/// Whether a partition was made as one: ATTACH writes every column of it again, by a later command.
const MADE_AS_PARTITION: &str = "
    SELECT EXISTS (SELECT FROM pg_attribute s JOIN pg_attribute u ON u.attrelid = s.attrelid AND u.attnum > 0
                   WHERE s.attrelid = $1 AND s.attnum = -1 AND s.xmin::text = $2 AND u.xmin = s.xmin AND u.cmin = s.cmin),
           pg_get_partition_constraintdef($1)";

const NAMED: &str = "
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";

/// Looks. What several statements tell can be from different moments; a difference is looked at again with the next.
pub async fn look(client: &Prepared, question: &Question<'_>) -> Result<Seen, Error> {
    let asked = |cause| Error::statement("compare publication and tables with what is published", cause);
    let publication = client.ask(PUBLICATION, &[&question.publication]).await.map_err(asked)?;
    let unanswered = || Error::Protocol { operation: "look at the publication".into(), what: "no row".into() };
    let publication = publication.first().ok_or_else(unanswered)?;
    let version = publication.get::<_, i32>(0).unsigned_abs();
    let at = publication.get::<_, String>(7).parse().unwrap_or_default();
    let mut seen = Seen { at, publication: publication_of(publication), ..Seen::default() };
    let oids: Vec<u32> = question.tables.keys().copied().collect();
    let rows = client.ask(&tables_query(version), &[&oids, &question.publication]).await.map_err(asked)?;
    for row in rows {
        let (oid, mut table) = (row.get(0), table_of(&row));
        question.named.get(oid).into_iter().for_each(|named| table.go_by(named));
        seen.tables.insert(oid, table);
    }
    for row in client.ask(FILES, &[&oids]).await.map_err(asked)? {
        let root: u32 = row.get(0);
        let Some(table) = seen.tables.get_mut(&root) else { continue };
        let imprint = question.tables.get(&root).and_then(Option::as_ref);
        let file = file_of(client, &row, table, imprint, question.asks_partitions).await?;
        table.files.push(file);
    }
    let has_left = |(oid, name): &(&u32, &TableName)| seen.tables.get(oid).is_none_or(|table| table.name != **name);
    for (oid, name) in question.names.iter().filter(has_left).collect::<Vec<_>>() {
        let successor = client.query_opt(NAMED, &[&name.schema, &name.table]).await.map_err(asked)?;
        seen.successors.extend(successor.map(|row| (*oid, row.get(0))));
    }
    Ok(seen)
}

fn publication_of(row: &Row) -> Option<Publication> {
    let acts = [(2, "insert"), (3, "update"), (4, "delete"), (5, "truncate")].into_iter();
    let omitted = |(at, act): (usize, _)| (row.get::<_, Option<bool>>(at) == Some(false)).then_some(act);
    row.get::<_, bool>(1).then(|| Publication { omitted: acts.filter_map(omitted).collect(), via_root: row.get(6) })
}

fn tables_query(version: u32) -> String {
    TABLES
        .replace("{joins}", &published::joins(version))
        .replace("{is_published}", published::IS_PUBLISHED)
        .replace("{carried}", published::carried(version))
        .replace("{schema}", published::schema(version))
}

fn table_of(row: &Row) -> Table {
    let keys: Option<Vec<String>> = row.get(11);
    let numbers = |text: String| text.split(',').filter_map(|number| number.parse().ok()).collect::<Vec<i16>>();
    let mut keys: Vec<Vec<i16>> = keys.unwrap_or_default().into_iter().map(numbers).collect();
    keys.iter_mut().for_each(|key| key.sort_unstable());
    let has_key: bool = row.get(12);
    let columns: Option<Vec<i16>> = row.get(13);
    let columns = columns.unwrap_or_default();
    let names: Vec<String> = row.get::<_, Option<_>>(14).unwrap_or_default();
    let types: Vec<u32> = row.get::<_, Option<_>>(15).unwrap_or_default();
    let bases: Vec<u32> = row.get::<_, Option<_>>(16).unwrap_or_default();
    let modifiers: Vec<i32> = row.get::<_, Option<_>>(17).unwrap_or_default();
    let rows: Vec<i64> = row.get::<_, Option<_>>(18).unwrap_or_default();
    let those = |at: usize| {
        let is: Vec<bool> = row.get::<_, Option<_>>(at).unwrap_or_default();
        columns.iter().zip(is).filter_map(|(number, is)| is.then_some(*number)).collect()
    };
    let (given, defaulted) = (those(19), those(20));
    let oids = |at: usize| row.get::<_, Option<Vec<u32>>>(at).unwrap_or_default();
    let texts: Vec<String> = row.get::<_, Option<_>>(23).unwrap_or_default();
    let labels = oids(21).into_iter().zip(oids(22)).zip(texts);
    let column = |(at, number): (usize, &i16)| {
        ImprintColumn(*number, names[at].clone(), types[at], bases[at], modifiers[at], xid(rows[at]))
    };
    Table {
        name: TableName::new(row.get::<_, String>(1), row.get::<_, String>(2)),
        is_partitioned: row.get(3),
        is_logged: row.get(4),
        is_published: row.get(8),
        identity: row.get::<_, String>(5).chars().next().unwrap_or('n'),
        has_key,
        imprint: Imprint {
            publication: row.get(9),
            altered: row.get::<_, Option<i64>>(24).map(xid),
            entry: row.get(10),
            key: keys.first().filter(|_| has_key).cloned().unwrap_or_default(),
            last_column: row.get(6),
            columns: columns.iter().enumerate().map(column).collect(),
            files: Vec::new(),
            labels: labels.map(|((of, label), text)| ImprintLabel(of, label, text)).collect(),
        },
        is_named: false,
        keys,
        given,
        defaulted,
        files: Vec::new(),
        rows_estimated: row.get::<_, i64>(7).unsigned_abs(),
    }
}

/// An xid has 32 bits; a catalog is asked for it as a wider number.
fn xid(wide: i64) -> u32 {
    wide as u32
}

async fn file_of(
    client: &Client,
    row: &Row,
    root: &Table,
    imprint: Option<&Imprint>,
    asks_partitions: bool,
) -> Result<File, Error> {
    let (oid, link): (u32, Option<(String, i64)>) = (row.get(1), row.get::<_, Option<_>>(7).zip(row.get(8)));
    let is_known = imprint.is_none_or(|imprint| imprint.files.iter().any(|file| file.0 == oid));
    let brought = match link {
        Some(link) if !is_known && asks_partitions => brought(client, root, oid, link).await?,
        Some(_) if !is_known => Brought::Unasked,
        _ => Brought::Known,
    };
    Ok(File {
        file: ImprintFile(oid, row.get(2), row.get(3)),
        name: format!("{}.{}", row.get::<_, String>(5), row.get::<_, String>(6)),
        is_uncounted: row.get(4),
        brought,
    })
}

/// Whether a partition has rows that are older than its link to the root: they came with it and were not sent.
async fn brought(client: &Client, root: &Table, oid: u32, (link, command): (String, i64)) -> Result<Brought, Error> {
    let asked = |cause| Error::statement(format!("look into a new partition of {}", root.name), cause);
    let Some(row) = client.query_opt(MADE_AS_PARTITION, &[&oid, &link]).await.map_err(asked)? else {
        return Ok(Brought::Unasked);
    };
    if row.get(0) {
        return Ok(Brought::Nothing);
    }
    // Through the root: rights on it are enough, and the partition's own condition leaves the others out.
    let own: Option<String> = row.get(1);
    let own = own.map_or(String::new(), |condition| format!(" AND ({condition})"));
    let search = format!(
        "SET statement_timeout = {SEARCH_MS};
         SELECT EXISTS (SELECT FROM {root} WHERE tableoid = {oid}{own}
                        AND (age(xmin) > age({link}::xid) OR (xmin = {link}::xid AND cmin::text::int8 < {command})))",
        root = quote::table(&root.name),
        link = quote::literal(&link),
    );
    let answer = client.simple_query(&search).await;
    client.batch_execute("SET statement_timeout = 0").await.map_err(asked)?;
    let has_rows = answer.map(|messages| {
        messages.iter().any(|message| {
            matches!(message, postgres::tokio_postgres::SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))
        })
    });
    match has_rows.map_err(asked) {
        Ok(false) => Ok(Brought::Nothing),
        Ok(true) => Ok(Brought::Rows),
        // Gone again, or not to be told in time or with our rights.
        Err(error) if matches!(error.sqlstate(), Some("42P01")) => Ok(Brought::Unasked),
        Err(error) if matches!(error.sqlstate(), Some("57014" | "42501")) => Ok(Brought::Rows),
        Err(error) => Err(error),
    }
}
