//! What a table leaves behind that is published no more: its place in the publication, what groups have done of its topic, and
//! the topic.

use std::collections::BTreeSet;

use kafka::admin::Admin;
use postgres::{Client, quote};
use schemas::TableName;
use schemas::topic::group_id;
use sink::config::To;

use super::Report;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::state;

/// What it takes.
pub(super) struct Means<'a> {
    pub(super) configuration: &'a Configuration,
    pub(super) source: &'a source::Config,
    pub(super) client: &'a Client,
    pub(super) dry_run: bool,
}

impl Means<'_> {
    /// Takes away what is left of the tables, and says what it could not.
    pub(super) async fn take_away(
        &self,
        tables: &[TableName],
        with_topic: bool,
        report: &mut Report,
    ) -> Result<(), Failure> {
        for table in tables {
            self.publication(table, report).await?;
        }
        let admin = Admin::connect(&self.configuration.kafka).map_err(source::Error::from)?;
        let topics = self.topics(tables, report).await?;
        for topic in &topics {
            let is_read = self.groups(&admin, topic, report).await?;
            match (with_topic, is_read) {
                (false, _) => report.remains.push(format!("the topic {topic}: --topic deletes it")),
                (true, true) => report.remains.push(format!("the topic {topic}, which is still read")),
                (true, false) => {
                    report.steps.push(format!("topic {topic} deleted"));
                    if !self.dry_run {
                        admin.delete(topic).await.map_err(source::Error::from)?;
                    }
                }
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
        if !found.get::<_, bool>(0) {
            return Ok(());
        }
        let statement =
            format!("ALTER PUBLICATION {} DROP TABLE {}", quote::identifier(publication), quote::table(table));
        if self.dry_run {
            report.steps.push(statement);
            return Ok(());
        }
        match self.client.batch_execute(&statement).await.map_err(failed) {
            Ok(()) => report.steps.push(statement),
            Err(error) if error.sqlstate() == Some("42501") => {
                report.remains.push(format!("{statement}; by the owner of the publication"));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The topics that held these tables alone.
    async fn topics(&self, tables: &[TableName], report: &mut Report) -> Result<BTreeSet<String>, Failure> {
        let Some(state) = state::read(self.configuration).await? else { return Ok(BTreeSet::new()) };
        let prefix = &self.configuration.prefix;
        let mut topics = BTreeSet::new();
        for table in tables {
            let former = state.topics().iter().find(|topic| topic.topic.former.contains(table));
            let topic = former.map_or_else(|| self.source.topics.topic_of(prefix, table), |topic| topic.name.clone());
            let others = state.tables().any(|(_, other)| other.topic == topic && !tables.contains(&other.name));
            let were_others =
                former.is_some_and(|topic| topic.topic.former.iter().any(|other| !tables.contains(other)));
            if others || were_others {
                report.remains.push(format!("the topic {topic}, which other tables share"));
            } else if state.topics().iter().any(|known| known.name == topic) {
                topics.insert(topic);
            }
        }
        Ok(topics)
    }

    /// Forgets what groups have done of the topic. Whether one still reads it: a sink that runs would begin it anew.
    async fn groups(&self, admin: &Admin, topic: &str, report: &mut Report) -> Result<bool, Failure> {
        let mut is_read = false;
        for group in &self.configuration.sink.groups {
            let id = group_id(&self.configuration.prefix, &group.name);
            let members =
                admin.group(&id).await.map_err(source::Error::from)?.map(|group| group.members).unwrap_or_default();
            if members.iter().any(|member| member.partitions.iter().any(|(name, _)| name == topic)) {
                is_read = true;
                report.remains.push(format!(
                    "what the group {} has done of {topic}: a sink reads it still; start the sinks with the new list, then the same command again",
                    group.name
                ));
                continue;
            }
            match (&group.to, &self.configuration.sink.target, &self.configuration.sink.redis) {
                (To::Postgres, Some(target), _) => {
                    let rows = sink::forget::rows(target, &group.name, topic, self.dry_run).await?;
                    if rows > 0 {
                        report.steps.push(format!("group {}: progress and parked events of {topic}", group.name));
                    }
                }
                (To::Redis(_), _, Some(redis)) => {
                    let prefix = &self.configuration.prefix;
                    let keys = sink::forget::keys(redis, prefix, &group.name, topic, self.dry_run).await?;
                    if keys > 0 {
                        report.steps.push(format!("group {}: progress of {topic} in Redis", group.name));
                    }
                }
                _ => {}
            }
        }
        Ok(is_read)
    }
}
