//! What a table leaves behind that is published no more: its place in the publication, what groups have done of its topic, and
//! the topic.
//!
//!     nobody chooses or reads it any more ──▶ its rows in targets ──▶ the topic ──▶ its progress in Redis
//!
//! A group that still chooses the table keeps all that it has: without its progress it would begin the topic anew, over a target
//! that may be in use; without the topic it would wait for it for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka::admin::Admin;
use postgres::{Client, quote};
use schemas::TableName;
use schemas::topic::group_id;
use sink::config::{Group, To};

use super::Report;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::state;

/// How often, and how many times, it is asked whether Kafka has forgotten the offsets of a topic that is gone.
const ASK_EVERY: Duration = Duration::from_millis(500);
const ASKED_MAX: u32 = 20;

/// What it takes.
pub(super) struct Means<'a> {
    /// As the file says it now: what the groups choose counts with the table off the list.
    pub(super) configuration: &'a Configuration,
    pub(super) source: &'a source::Config,
    pub(super) client: &'a Client,
    pub(super) with_topic: bool,
    pub(super) dry_run: bool,
}

/// A topic that holds tables which are to go.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    /// Those tables.
    tables: Vec<TableName>,
    /// Tables that stay there, or went before by another command.
    others: Vec<TableName>,
    /// How many partitions are in use.
    partitions: i32,
}

impl Means<'_> {
    /// Takes away what is left of the tables, and says what it could not.
    pub(super) async fn take_away(&self, tables: &[TableName], report: &mut Report) -> Result<(), Failure> {
        for table in tables {
            self.publication(table, report).await?;
        }
        let Some(state) = state::read(self.configuration).await? else { return Ok(()) };
        let admin = Admin::connect(&self.configuration.kafka).map_err(source::Error::from)?;
        for (topic, left) in self.topics(&state, tables) {
            let mut is_needed = false;
            for group in &self.configuration.sink.groups {
                is_needed |= self.group(&admin, group, &topic, &left, report).await?;
            }
            if self.topic(&admin, &topic, &left, is_needed, report).await? {
                self.redis(&admin, &topic, &left, report).await?;
            }
        }
        Ok(())
    }

    async fn publication(&self, table: &TableName, report: &mut Report) -> Result<(), Failure> {
        let publication = &self.source.publication;
        let failed =
            |cause| postgres::Error::statement(format!("take {table} out of the publication {publication}"), cause);
        let query = "SELECT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                                    JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
                                    WHERE p.pubname = $1 AND n.nspname = $2 AND c.relname = $3)";
        let found = self.client.query_one(query, &[publication, &table.schema, &table.table]).await.map_err(failed)?;
        let is_named: bool = found.get(0);
        let statement =
            format!("ALTER PUBLICATION {} DROP TABLE {}", quote::identifier(publication), quote::table(table));
        if is_named && self.dry_run {
            report.steps.push(statement);
            return Ok(());
        }
        if is_named {
            match self.client.batch_execute(&statement).await.map_err(failed) {
                Ok(()) => report.steps.push(statement),
                Err(error) if error.sqlstate() == Some("42501") => {
                    report.remains.push(format!("{statement}; by the owner of the publication"));
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let query = "SELECT EXISTS (SELECT FROM pg_publication_tables WHERE pubname = $1 AND schemaname = $2 AND tablename = $3)";
        let found = self.client.query_one(query, &[publication, &table.schema, &table.table]).await.map_err(failed)?;
        if found.get(0) {
            report.remains.push(format!(
                "{table} in the publication {publication}, which is of all tables, or of a whole schema: the server goes on sending its changes, and the source leaves them out. A publication that names its tables, in source.publication, ends that"
            ));
        }
        Ok(())
    }

    /// The topics that hold these tables, as far as the state knows them.
    fn topics(&self, state: &source::State, tables: &[TableName]) -> BTreeMap<String, Left> {
        let mut topics: BTreeMap<String, Left> = BTreeMap::new();
        for table in tables {
            let published =
                state.tables().find(|(_, known)| known.name == *table).map(|(_, known)| known.topic.clone());
            let former = state.topics().iter().find(|topic| topic.topic.former.contains(table));
            let topic = published
                .or_else(|| former.map(|topic| topic.name.clone()))
                .unwrap_or_else(|| self.source.topics.topic_of(&self.configuration.prefix, table));
            let Some(known) = state.topics().iter().find(|known| known.name == topic) else { continue };
            let others = state.tables().filter(|(_, other)| other.topic == topic).map(|(_, other)| &other.name);
            let others = others.chain(&known.topic.former).filter(|other| !tables.contains(other));
            let others: Vec<TableName> = others.cloned().collect();
            let left = topics.entry(topic).or_default();
            left.tables.push(table.clone());
            left.others = others;
            left.partitions = known.topic.partitions;
        }
        topics
    }

    /// Forgets what a group has done of the tables. Whether it still needs the topic.
    async fn group(
        &self,
        admin: &Admin,
        group: &Group,
        topic: &str,
        left: &Left,
        report: &mut Report,
    ) -> Result<bool, Failure> {
        let name = &group.name;
        let chosen = chosen(group, left);
        if !chosen.is_empty() {
            report.remains.push(format!(
                "what the group {name} has done of {topic}: it still chooses {}; {}, start the sinks with that, then the same command again",
                super::names(&chosen),
                way_out(group, &chosen),
            ));
            return Ok(true);
        }
        let is_shared = !left.others.is_empty();
        let is_read = self.is_read(admin, group, topic).await?;
        if is_read && !is_shared {
            report.remains.push(format!(
                "what the group {name} has done of {topic}: a sink reads it still; start the sinks with the new list, then the same command again",
            ));
            return Ok(true);
        }
        let (To::Postgres, Some(target)) = (&group.to, &self.configuration.sink.target) else { return Ok(false) };
        if is_shared {
            self.rows_of_tables((target, name), topic, left, is_read, report).await?;
            return Ok(false);
        }
        if sink::forget::topic(target, name, topic, self.dry_run).await? > 0 {
            report.steps.push(format!("group {name}: progress and parked events of {topic}"));
        }
        Ok(false)
    }

    /// Of a topic that others share: rows of the tables alone.
    async fn rows_of_tables(
        &self,
        (target, group): (&postgres::Config, &str),
        topic: &str,
        left: &Left,
        is_read: bool,
        report: &mut Report,
    ) -> Result<(), Failure> {
        for table in &left.tables {
            if sink::forget::table(target, group, topic, table, self.dry_run).await? > 0 {
                report.steps.push(format!("group {group}: parked events and open loads of {table} in {topic}"));
            }
            // Partitions of a sink that runs may stand there.
            if sink::forget::holds(target, group, topic, table, self.dry_run || is_read).await? > 0 {
                let what = format!("group {group}: where partitions of {topic} were to meet at a truncate of {table}");
                if is_read {
                    report.remains.push(format!("{what}: stop its sinks, then the same command again"));
                } else {
                    report.steps.push(what);
                }
            }
        }
        Ok(())
    }

    /// A sink that runs would find no progress, and begin anew.
    async fn is_read(&self, admin: &Admin, group: &Group, topic: &str) -> Result<bool, Failure> {
        let id = group_id(&self.configuration.prefix, &group.name);
        let found = admin.group(&id).await.map_err(source::Error::from)?;
        let mut partitions = found.into_iter().flat_map(|group| group.members).flat_map(|member| member.partitions);
        Ok(partitions.any(|(name, _)| name == topic))
    }

    /// Deletes the topic where that is asked for and nobody needs it. Whether it is gone, or would be.
    async fn topic(
        &self,
        admin: &Admin,
        topic: &str,
        left: &Left,
        is_needed: bool,
        report: &mut Report,
    ) -> Result<bool, Failure> {
        if admin.topics(&[topic]).await.map_err(source::Error::from)?.is_empty() {
            return Ok(!is_needed);
        }
        if !left.others.is_empty() {
            report.notes.push(format!("the topic {topic} stays, which holds {} too", super::names(&left.others)));
            return Ok(false);
        }
        match (self.with_topic, is_needed) {
            (false, _) => report.notes.push(format!("the topic {topic} stays: --topic deletes it")),
            (true, true) => report.remains.push(format!("the topic {topic}, which is still needed")),
            (true, false) => {
                report.steps.push(format!("topic {topic} deleted"));
                if !self.dry_run {
                    admin.delete(topic).await.map_err(source::Error::from)?;
                }
            }
        }
        Ok(self.with_topic && !is_needed)
    }

    /// Forgets what groups have announced in Redis of a topic that is gone. As long as it is there Kafka keeps the offsets of the
    /// group, and progress that is missing beside them would be taken for lost.
    async fn redis(&self, admin: &Admin, topic: &str, left: &Left, report: &mut Report) -> Result<(), Failure> {
        let Configuration { prefix, sink, .. } = self.configuration;
        let Some(redis) = &sink.redis else { return Ok(()) };
        for group in sink.groups.iter().filter(|group| matches!(group.to, To::Redis(_))) {
            let (name, topics) = (&group.name, [(topic, left.partitions)]);
            if !self.dry_run && self.are_offsets_kept(admin, group, &topics).await? {
                report.remains.push(format!(
                    "what the group {name} has announced of {topic}: Kafka has not forgotten its offsets yet; the same command again"
                ));
                continue;
            }
            let keys = sink::forget::keys(redis, prefix, name, topic, self.dry_run).await?;
            if keys > 0 {
                report.steps.push(format!("group {name}: progress of {topic} in Redis"));
            }
        }
        Ok(())
    }

    /// Kafka forgets them by itself, a moment after the topic.
    async fn are_offsets_kept(&self, admin: &Admin, group: &Group, topics: &[(&str, i32)]) -> Result<bool, Failure> {
        let id = group_id(&self.configuration.prefix, &group.name);
        for _ in 0..ASKED_MAX {
            if admin.committed(&id, topics).await.map_err(source::Error::from)?.is_empty() {
                return Ok(false);
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
        Ok(true)
    }
}

/// Those of the tables that are to go which the group takes nevertheless.
fn chosen(group: &Group, left: &Left) -> Vec<TableName> {
    left.tables.iter().filter(|table| group.tables.chooses(table)).cloned().collect()
}

/// What to write so that the group takes them no more.
fn way_out(group: &Group, tables: &[TableName]) -> String {
    let is_named = |table: &TableName| group.tables.taking().any(|item| item.table().as_ref() == Some(table));
    let by_pattern =
        |table: &TableName| group.tables.taking().any(|item| item.table().is_none() && item.matches(table));
    let mut words = Vec::new();
    if tables.iter().any(is_named) {
        words.push(format!("take it out of groups.{}.tables", group.name));
    }
    let excluded: Vec<String> =
        tables.iter().filter(|table| by_pattern(table)).map(|it| format!("\"!{it}\"")).collect();
    if !excluded.is_empty() {
        words.push(format!("add {} to groups.{}.tables", excluded.join(", "), group.name));
    }
    words.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(tables: &str) -> Group {
        let text = format!(
            "prefix = 'shop'\n[kafka]\nbrokers = 'kafka://a:1'\n[target]\nurl = 'postgresql://u@h/d'\n\
             [groups.rdb]\nto = 'postgres'\ntables = [{tables}]"
        );
        let document = service::config::Document::parse(&text, std::iter::empty()).expect("TOML");
        let configuration = Configuration::from(document, std::path::Path::new("tributary.toml")).expect("sound");
        configuration.sink.groups.into_iter().next().expect("one group")
    }

    #[test]
    fn a_group_that_chooses_a_table_keeps_what_it_has_of_it_and_is_told_how_to_let_go() {
        let table: TableName = "shop.gone".parse().expect("a name");
        let left = Left { tables: vec![table.clone()], ..Left::default() };
        let check = |tables: &str, expected: Option<&str>| {
            let group = group(tables);
            let chosen = chosen(&group, &left);
            let words = (!chosen.is_empty()).then(|| way_out(&group, &chosen));
            assert_eq!(words.as_deref(), expected, "{tables}");
        };
        check("'shop.users'", None);
        check("'shop.*', '!shop.gone'", None);
        check("'shop.users', 'shop.gone'", Some("take it out of groups.rdb.tables"));
        check("'shop.*'", Some("add \"!shop.gone\" to groups.rdb.tables"));
        check(
            "'shop.gone', 'shop.g*'",
            Some("take it out of groups.rdb.tables and add \"!shop.gone\" to groups.rdb.tables"),
        );
    }
}
