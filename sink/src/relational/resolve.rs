//! Keys that stand still since something was in their way, tried again: it may be gone by now, or they are in each other's way.
//!
//!     chosen ─▶ their partitions' progress locked ─▶ events read
//!        ─▶ each key as it stands, until a pass adds nothing            a value that another key has given away since
//!        ─▶ what is left: all rows away first, then in again            a value that two rows have exchanged
//!        ─▶ applied: parked no more.  refused: why, and whether it can ever be otherwise
//!
//! One transaction. Whoever owns one of the partitions waits for it in his next compare-and-set, so nobody applies or parks
//! an event of these keys meanwhile; behind it he may take a key for parked that is not any more, parks an event that
//! nothing stands in front of, and that is tried here with the next look. What a key comes to is what its own events say, in
//! their order: it does not matter how far other partitions are. So a key is never given up for what others may still change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use schemas::{Columns, TableName};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Executor, Row};

use super::plan::{self, Change, Plan};
use super::{Relational, Write};
use crate::error::Error;
use crate::parked::{Class, Kept, ParkedKeys, as_it_stood};
use crate::record::{Budget, Partition, Segment};
use crate::refused::Refused;
use crate::statement::{self, Statement};

/// So many keys are tried at once, so that the owners of their partitions wait but a moment …
const KEYS_MAX: i64 = 2_000;
/// … and of so many bytes, but for a single key of more.
const BYTES_MAX: i64 = 8 << 20;

/// Keys of which the first event may apply by now. At random, so that of more than are tried at once each pair meets.
const CHOSEN: &str = "
SELECT topic, part, tbl, key, bytes FROM (
    SELECT topic, part, tbl, key, sum(octet_length(record::text))::int8 AS bytes,
           (array_agg(class ORDER BY off))[1] AS class, (array_agg(attempts ORDER BY off))[1] AS attempts
    FROM tributary.parked WHERE grp = $1 AND topic = ANY ($2) GROUP BY topic, part, tbl, key) k
WHERE class = 'undecided' OR attempts = 0
ORDER BY random() LIMIT $3";

const LOCKED: &str = "
SELECT FROM tributary.progress
WHERE grp = $1 AND (topic, part) IN (SELECT topic, part FROM unnest($2::text[], $3::int4[]) v (topic, part))
ORDER BY topic, part FOR UPDATE";

/// A truncate that comes first has taken them away; one that comes later waits for us.
const EVENTS: &str = "
SELECT p.topic, p.part, p.tbl, p.key, p.off, p.record::text
FROM unnest($2::text[], $3::int4[], $4::text[], $5::text[]) v (topic, part, tbl, key)
JOIN tributary.parked p ON p.grp = $1 AND p.tbl = v.tbl AND p.key = v.key AND p.topic = v.topic AND p.part = v.part
ORDER BY p.topic, p.part, p.tbl, p.key, p.off FOR UPDATE OF p";

const APPLIED: &str = "
DELETE FROM tributary.parked p USING unnest($2::text[], $3::int4[], $4::int8[]) v (topic, part, off)
WHERE p.grp = $1 AND p.topic = v.topic AND p.part = v.part AND p.off = v.off";

const REFUSED: &str = "
UPDATE tributary.parked p SET attempts = attempts + 1, last_at = now(), class = v.class, cause = v.cause, sqlstate = v.sqlstate
FROM unnest($2::text[], $3::int4[], $4::int8[], $5::text[], $6::text[], $7::text[]) v (topic, part, off, class, cause, sqlstate)
WHERE p.grp = $1 AND p.topic = v.topic AND p.part = v.part AND p.off = v.off";

/// Whether more is set aside than may be.
const MANY: &str = "
SELECT count(*) > $3 FROM (SELECT FROM tributary.parked WHERE grp = $1 AND topic = ANY ($2) LIMIT $3 + 1) p";

/// What came of one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Events that were applied.
    pub(crate) events: usize,
    /// Keys that were tried and stand still.
    pub(crate) left: usize,
    /// Keys of them for which there was no time.
    pub(crate) untried: usize,
    /// Keys of them that can only go on once a person has done something.
    pub(crate) dead: usize,
}

/// A key that stands still, and its events.
struct Key {
    /// Its number among those that are tried together.
    id: usize,
    partition: Partition,
    table: TableName,
    name: String,
    offsets: Vec<i64>,
    events: Segment,
}

/// Keys that were not applied.
#[derive(Default)]
struct Left<'k> {
    refused: Vec<(&'k Key, Refused)>,
    untried: Vec<&'k Key>,
}

impl Relational {
    /// Tries what is parked of these topics and may apply by now, for about so long each way. Does nothing while another
    /// process is at it.
    pub(crate) async fn resolve(&self, topics: &[String], patience: Duration) -> Result<Resolved, Error> {
        let work = async {
            let mut lease = self.pool.get().await?;
            let resolved = self.resolve_within(lease.connection(), topics, patience).await?;
            lease.keep();
            Ok(resolved)
        };
        self.within("try parked events again", work).await
    }

    /// Whether more than so many events of these topics are set aside.
    pub(crate) async fn has_many_parked(&self, topics: &[String], max: u32) -> Result<bool, Error> {
        let work = async {
            let mut lease = self.pool.get().await?;
            let asked = sqlx::query(MANY).bind(&self.group).bind(topics).bind(i64::from(max));
            let row = asked.fetch_one(lease.connection()).await;
            let is_many = row.map_err(|cause| self.failed("count parked events", cause))?.get(0);
            lease.keep();
            Ok(is_many)
        };
        self.within("count parked events", work).await
    }

    async fn resolve_within(
        &self,
        connection: &mut PgConnection,
        topics: &[String],
        patience: Duration,
    ) -> Result<Resolved, Error> {
        let failed = |cause| self.failed("try parked events again", cause);
        connection.execute("BEGIN").await.map_err(failed)?;
        let resolved = match self.hold(connection, topics).await.map_err(failed)? {
            keys if keys.is_empty() => Resolved::default(),
            keys => self.try_again(connection, &keys, patience).await?,
        };
        connection.execute("COMMIT").await.map_err(failed)?;
        Ok(resolved)
    }

    /// The keys, of which nobody applies or parks anything until the transaction ends.
    async fn hold(&self, connection: &mut PgConnection, topics: &[String]) -> Result<Vec<Key>, sqlx::Error> {
        let chosen = sqlx::query(CHOSEN).bind(&self.group).bind(topics).bind(KEYS_MAX);
        let mut bytes = 0;
        let fits = |row: &PgRow| {
            let is_first = bytes == 0;
            bytes += row.get::<i64, _>(4);
            is_first || bytes <= BYTES_MAX
        };
        let is_taken = |row: &PgRow| row.get::<&str, _>(2).parse().is_ok_and(|table| self.catalog.takes(&table));
        let chosen = chosen.fetch_all(&mut *connection).await?.into_iter().filter(is_taken);
        let chosen: Vec<PgRow> = chosen.take_while(fits).collect();
        if chosen.is_empty() || !self.is_alone(connection).await? {
            return Ok(Vec::new());
        }
        let text = |column: usize| chosen.iter().map(|row| row.get(column)).collect::<Vec<String>>();
        let (topics, tables, names) = (text(0), text(2), text(3));
        let partitions: Vec<i32> = chosen.iter().map(|row| row.get(1)).collect();
        sqlx::query(LOCKED).bind(&self.group).bind(&topics).bind(&partitions).fetch_all(&mut *connection).await?;
        let events = sqlx::query(EVENTS).bind(&self.group).bind(&topics).bind(&partitions).bind(&tables).bind(&names);
        keys(&events.fetch_all(connection).await?)
    }

    /// Two who try the same keys at once would only wait for each other.
    async fn is_alone(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let sql = "SELECT pg_try_advisory_xact_lock(hashtextextended('tributary resolve ' || $1, 0))";
        Ok(sqlx::query(sql).bind(&self.group).fetch_one(connection).await?.get(0))
    }

    async fn try_again(
        &self,
        connection: &mut PgConnection,
        keys: &[Key],
        patience: Duration,
    ) -> Result<Resolved, Error> {
        let failed = |cause| self.failed("try parked events again", cause);
        let until = Instant::now() + patience;
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE").await.map_err(failed)?;
        let Left { mut refused, mut untried } =
            self.apply_keys(connection, keys.iter().map(|key| (key, &key.events)).collect(), until).await?;
        let is_dead = |left: &(&Key, Refused)| Class::of(&left.1) == Some(Class::Dead);
        let (dead, undecided): (Vec<_>, Vec<_>) = refused.into_iter().partition(is_dead);
        refused = undecided;
        if !dead.is_empty() {
            // The table may have been altered since we looked at it.
            let tables: BTreeSet<&TableName> = dead.iter().map(|(key, _)| &key.table).collect();
            let tables: Vec<TableName> = tables.into_iter().cloned().collect();
            self.read_catalog_within(connection, &tables).await?;
            let dead = dead.iter().map(|(key, _)| (*key, &key.events)).collect();
            let again = self.apply_keys(connection, dead, until).await?;
            refused.extend(again.refused);
            untried.extend(again.untried);
        }
        let (exchanged, hurried) = self.exchange(connection, &refused, Instant::now() + patience).await?;
        refused.retain(|(key, _)| !exchanged.contains(&key.id));
        let left: HashSet<usize> =
            refused.iter().map(|(key, _)| key.id).chain(untried.iter().map(|key| key.id)).collect();
        let mut applied: Vec<(&Key, i64)> = Vec::new();
        for key in keys.iter().filter(|key| !left.contains(&key.id)) {
            applied.extend(key.offsets.iter().map(|offset| (key, *offset)));
        }
        let mut at_fault = Vec::new();
        for (key, why) in refused {
            // Only of a key that can never apply as a whole it matters which of its events is at fault.
            let (done, why) = match Class::of(&why) {
                Some(Class::Dead) if key.offsets.len() > 1 => self.up_to_fault(connection, key, why).await?,
                _ => (0, why),
            };
            applied.extend(key.offsets[..done].iter().map(|offset| (key, *offset)));
            at_fault.push((key, key.offsets[done], why));
        }
        self.forget(connection, &applied).await.map_err(failed)?;
        self.note(connection, &at_fault).await.map_err(failed)?;
        let dead = at_fault.iter().filter(|(_, _, why)| Class::of(why) == Some(Class::Dead)).count();
        Ok(Resolved { events: applied.len(), left: left.len(), untried: untried.len() + hurried, dead })
    }

    /// Applies as many of the keys as can be within the time for it, and tells the others.
    async fn apply_keys<'k>(
        &self,
        connection: &mut PgConnection,
        mut keys: Vec<(&'k Key, &Segment)>,
        until: Instant,
    ) -> Result<Left<'k>, Error> {
        loop {
            let count = keys.len();
            let (mut parts, mut refused, mut untried) = (vec![keys], Vec::new(), Vec::new());
            while let Some(mut part) = parts.pop() {
                if Instant::now() > until {
                    untried.append(&mut part);
                    continue;
                }
                match self.apply_part(connection, &part).await? {
                    None => {}
                    Some(why) if part.len() == 1 => refused.push((part[0], why)),
                    Some(_) => {
                        let second = part.split_off(part.len() / 2);
                        parts.extend([second, part]);
                    }
                }
            }
            if refused.is_empty() || refused.len() == count || !untried.is_empty() {
                let refused = refused.into_iter().map(|((key, _), why)| (key, why)).collect();
                return Ok(Left { refused, untried: untried.into_iter().map(|(key, _)| key).collect() });
            }
            // What was in the way of these may have gone with the others.
            keys = refused.into_iter().map(|(key, _)| key).collect();
        }
    }

    /// Applies keys under a savepoint, all or none. Why none, if so; of several that need not be the reason of each.
    async fn apply_part(
        &self,
        connection: &mut PgConnection,
        keys: &[(&Key, &Segment)],
    ) -> Result<Option<Refused>, Error> {
        let mut by_partition: BTreeMap<&Partition, Vec<&Segment>> = BTreeMap::new();
        keys.iter().for_each(|(key, events)| by_partition.entry(&key.partition).or_default().push(events));
        let mut statements: Vec<(&Partition, Statement)> = Vec::new();
        for (partition, segments) in by_partition {
            let records = segments.iter().flat_map(|events| (0..events.len()).map(|index| events.record(index)));
            match Plan::rows(partition, records, &self.catalog, &ParkedKeys::default()) {
                Ok(Plan::Rows(rows)) => {
                    statements.extend(rows.statements.into_iter().map(|statement| (partition, statement)));
                }
                Ok(Plan::OneByOne | Plan::Control(_)) => match keys {
                    [(key, events)] => return self.apply_one_by_one(connection, key, events).await,
                    _ => return Ok(Some(Refused::Unfit("its table's events are applied one by one".to_owned()))),
                },
                // The table is not what it was when the event was set aside.
                Err(error) => return Ok(Some(Refused::Unfit(service::chain(&error).to_string()))),
            }
        }
        statements.sort_by_key(|(_, statement)| statement.kind);
        self.savepoint(connection, "SAVEPOINT part").await?;
        for (partition, statement) in statements {
            let written = self.write(connection, partition, std::slice::from_ref(&statement)).await?;
            if let Some(why) = self.bearable(written)? {
                self.savepoint(connection, "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part").await?;
                return Ok(Some(why));
            }
        }
        self.savepoint(connection, "RELEASE SAVEPOINT part").await?;
        Ok(None)
    }

    /// Applies the events of a table whose equal keys can differ in text, each by itself, all or none.
    async fn apply_one_by_one(
        &self,
        connection: &mut PgConnection,
        key: &Key,
        events: &Segment,
    ) -> Result<Option<Refused>, Error> {
        self.savepoint(connection, "SAVEPOINT part").await?;
        for index in 0..events.len() {
            let record = events.record(index);
            let change = Change::of(&key.partition, record)?;
            let mut fold = change.fold(&key.partition, record, &self.catalog)?;
            plan::add(&key.partition, record, &mut fold, change)?;
            let written = self.write(connection, &key.partition, &statement::statements(&[fold])).await?;
            if let Some(why) = self.bearable(written)? {
                self.savepoint(connection, "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part").await?;
                return Ok(Some(why));
            }
        }
        self.savepoint(connection, "RELEASE SAVEPOINT part").await?;
        Ok(None)
    }

    /// Why a statement was refused, if that says something of its events.
    fn bearable(&self, written: Write) -> Result<Option<Refused>, Error> {
        match written {
            Write::Done { .. } => Ok(None),
            Write::Refused(refused) if Class::of(&refused).is_none() => Err(self.refused(refused)),
            Write::Refused(refused) => Ok(Some(refused)),
        }
    }

    /// Rows that are in each other's way: all are taken away, and brought back as their events leave them. One that does not
    /// come back that way stays as it stands, and so does what it is in the way of. Those that were applied, by their numbers,
    /// and for how many there was no time.
    async fn exchange(
        &self,
        connection: &mut PgConnection,
        refused: &[(&Key, Refused)],
        until: Instant,
    ) -> Result<(HashSet<usize>, usize), Error> {
        let undecided = refused.iter().filter(|(_, why)| Class::of(why) == Some(Class::Undecided));
        let mut keys: Vec<&Key> = undecided.map(|(key, _)| *key).collect();
        while keys.len() > 1 && Instant::now() < until {
            self.savepoint(connection, "SAVEPOINT exchange").await?;
            let whole = match self.take_away(connection, &keys).await? {
                Ok(whole) => whole,
                // Something else depends on one of them.
                Err(_) => {
                    self.savepoint(connection, "ROLLBACK TO SAVEPOINT exchange; RELEASE SAVEPOINT exchange").await?;
                    return Ok((HashSet::new(), 0));
                }
            };
            let all = whole.iter().map(|(key, events)| (*key, events)).collect();
            let left = self.apply_keys(connection, all, until).await?;
            let is_done = left.refused.is_empty() && left.untried.is_empty();
            if is_done && whole.len() == keys.len() {
                self.savepoint(connection, "RELEASE SAVEPOINT exchange").await?;
                return Ok((keys.into_iter().map(|key| key.id).collect(), 0));
            }
            self.savepoint(connection, "ROLLBACK TO SAVEPOINT exchange; RELEASE SAVEPOINT exchange").await?;
            let without: HashSet<usize> = left.refused.iter().map(|(key, _)| key.id).collect();
            keys = whole.into_iter().map(|(key, _)| key).filter(|key| !without.contains(&key.id)).collect();
        }
        Ok((HashSet::new(), if keys.len() > 1 && Instant::now() >= until { keys.len() } else { 0 }))
    }

    /// Takes the rows of these keys away. Each key with its row as it stood in front of its events, so that columns which
    /// these do not bring come back too. Tables whose keys are not told apart by their text are left out.
    async fn take_away<'k>(
        &self,
        connection: &mut PgConnection,
        keys: &[&'k Key],
    ) -> Result<Result<Vec<(&'k Key, Segment)>, Refused>, Error> {
        let failed = |cause| self.failed("read rows that are in each other's way", cause);
        let mut by_table: HashMap<&TableName, Vec<&'k Key>> = HashMap::new();
        keys.iter().for_each(|key| by_table.entry(&key.table).or_default().push(key));
        let mut whole = Vec::new();
        for (table, keys) in by_table {
            let names: Result<Vec<Columns<'_>>, _> =
                keys.iter().map(|key| Columns::decode(key.name.as_bytes())).collect();
            let Some(names) = names.ok().filter(|names| !names.is_empty()) else { continue };
            let Some(shape) = self.catalog.shape(table, &names[0]).ok().filter(|shape| shape.foldable) else {
                continue;
            };
            let arrays = statement::key_arrays(&shape, &names);
            let mut query = sqlx::query(AssertSqlSafe(statement::read(&shape)));
            for array in &arrays {
                query = query.bind(array);
            }
            let mut stood: HashMap<usize, String> = HashMap::new();
            for row in query.fetch_all(&mut *connection).await.map_err(failed)? {
                let place = usize::try_from(row.get::<i64, _>(0)).unwrap_or_default();
                stood.insert(place, row.get(1));
            }
            for (place, key) in (1..).zip(&keys) {
                let Some(events) = key.behind(stood.get(&place).map(String::as_str)) else { continue };
                whole.push((*key, events));
            }
            let statement = statement::take_away(&shape, arrays);
            let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
            for array in &statement.arrays {
                query = query.bind(array);
            }
            if let Err(cause) = query.execute(&mut *connection).await {
                let refused = Write::Refused(Refused::Server(cause));
                return self.bearable(refused).map(|why| why.map_or(Ok(Vec::new()), Err));
            }
        }
        Ok(Ok(whole))
    }

    /// Applies a key's events up to the one that is at fault: how many stand before it, and why it is.
    async fn up_to_fault(
        &self,
        connection: &mut PgConnection,
        key: &Key,
        whole: Refused,
    ) -> Result<(usize, Refused), Error> {
        for (index, _) in key.offsets.iter().enumerate() {
            let mut single = Segment::new(&Budget::default());
            single.copy_from(&key.events, index, None);
            if let Some(why) = self.apply_part(connection, &[(key, &single)]).await? {
                return Ok((index, why));
            }
        }
        // One by one they all apply: it is for the next look to say so.
        Ok((key.offsets.len() - 1, whole))
    }

    async fn forget(&self, connection: &mut PgConnection, applied: &[(&Key, i64)]) -> Result<(), sqlx::Error> {
        sqlx::query(APPLIED)
            .bind(&self.group)
            .bind(applied.iter().map(|(key, _)| key.partition.topic.to_string()).collect::<Vec<_>>())
            .bind(applied.iter().map(|(key, _)| key.partition.number).collect::<Vec<_>>())
            .bind(applied.iter().map(|(_, offset)| *offset).collect::<Vec<_>>())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn note(&self, connection: &mut PgConnection, refused: &[(&Key, i64, Refused)]) -> Result<(), sqlx::Error> {
        let class = |why: &Refused| Class::of(why).unwrap_or(Class::Undecided).to_string();
        sqlx::query(REFUSED)
            .bind(&self.group)
            .bind(refused.iter().map(|(key, ..)| key.partition.topic.to_string()).collect::<Vec<_>>())
            .bind(refused.iter().map(|(key, ..)| key.partition.number).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, offset, _)| *offset).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, _, why)| class(why)).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, _, why)| why.in_full()).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, _, why)| why.sqlstate()).collect::<Vec<_>>())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn savepoint(&self, connection: &mut PgConnection, sql: &'static str) -> Result<(), Error> {
        connection.execute(sql).await.map(drop).map_err(|cause| self.failed("set a savepoint", cause))
    }
}

impl Key {
    /// Its events behind its row as it stood, told as one more event in front of them; `row` is the object of its columns.
    /// `None` where the events say too little of where they come from.
    fn behind(&self, row: Option<&str>) -> Option<Segment> {
        let mut whole = Segment::new(&Budget::default());
        if let Some(row) = row {
            let value = as_it_stood(self.events.record(0).value?, row)?;
            whole.copy_from(&self.events, 0, Some(value.as_bytes()));
        }
        (0..self.events.len()).for_each(|index| whole.copy_from(&self.events, index, None));
        Some(whole)
    }
}

/// Events of keys, one key after the other, as keys.
fn keys(rows: &[PgRow]) -> Result<Vec<Key>, sqlx::Error> {
    let mut keys: Vec<Key> = Vec::new();
    for row in rows {
        let (topic, number): (&str, i32) = (row.get(0), row.get(1));
        let (table, name): (&str, &str) = (row.get(2), row.get(3));
        let table = table.parse::<TableName>().map_err(|error| sqlx::Error::Decode(error.into()))?;
        let offset = row.get(4);
        let is_of = |key: &Key| {
            (&*key.partition.topic, key.partition.number) == (topic, number) && key.table == table && key.name == name
        };
        if !keys.last().is_some_and(is_of) {
            let partition = Partition { topic: topic.into(), number };
            let events = Segment::new(&Budget::default());
            let (id, name) = (keys.len(), name.to_owned());
            keys.push(Key { id, partition, table, name, offsets: Vec::new(), events });
        }
        let Some(key) = keys.last_mut() else { continue };
        let kept: Kept<'_> = serde_json::from_str(row.get(5)).map_err(|error| sqlx::Error::Decode(error.into()))?;
        kept.push(offset, &mut key.events).map_err(|error| sqlx::Error::Decode(error.into()))?;
        key.offsets.push(offset);
    }
    Ok(keys)
}
