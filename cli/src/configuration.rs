//! The whole configuration: each part reads its own section, all faults together.

use std::path::{Path, PathBuf};

use schemas::{Selection, TableName, topic};
use service::config::Document;
use service::{http, log};

use crate::failure::Failure;

/// All sections.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) file: PathBuf,
    pub(crate) prefix: String,
    pub(crate) log: log::Config,
    pub(crate) http: Option<http::Config>,
    pub(crate) kafka: kafka::Config,
    pub(crate) source: Option<source::Config>,
    pub(crate) sink: sink::Config,
}

impl Configuration {
    /// Reads `file` with the environment over it. Contacts no server.
    pub(crate) fn read(file: &Path) -> Result<Configuration, Failure> {
        if !file.exists() {
            return Err(Failure::NoConfiguration(file.to_owned()));
        }
        Configuration::from(Document::read(file, std::env::vars())?, file)
    }

    /// What `document` says, which is or would be that of `file`.
    pub(crate) fn from(document: Document, file: &Path) -> Result<Configuration, Failure> {
        let mut root = document.root();
        // Shared clusters hand out prefixes that end in the dot that we put behind it.
        let prefix = root.required::<String>("prefix").trim_end_matches('.').to_owned();
        if root.has("prefix") && !topic::is_valid(&prefix) {
            root.fault(
                "prefix",
                "stands before every topic and group: letters, digits, dots, hyphens and underscores, as in \"shop\"",
            );
        }
        let log = log::Config::read(&mut root.section("log"));
        let http = root.optional_section("http").map(|mut section| http::Config::read(&mut section));
        let kafka = kafka::Config::read(&mut root.section("kafka"));
        let source = root.optional_section("source").map(|mut section| source::Config::read(&mut section, &prefix));
        let published = source.as_ref().map(|source| &source.tables);
        let sink = sink::Config::read(&mut root, published);
        drop(root);
        document.finish()?;
        Ok(Configuration { file: file.to_owned(), prefix, log, http, kafka, source, sink })
    }

    /// The section [source], which `command` cannot do without.
    pub(crate) fn source(&self, command: &'static str) -> Result<&source::Config, Failure> {
        self.source.as_ref().ok_or_else(|| self.lacks("source", command))
    }

    /// The section [target], which `command` cannot do without.
    pub(crate) fn target(&self, command: &'static str) -> Result<&postgres::Config, Failure> {
        self.sink.target.as_ref().ok_or_else(|| self.lacks("target", command))
    }

    /// What a missing section means for `command`.
    pub(crate) fn lacks(&self, section: &'static str, command: &'static str) -> Failure {
        Failure::NoSection { file: self.file.clone(), section, command }
    }

    /// What the source publishes and what each group takes, as they are written.
    pub(crate) fn selections(&self) -> impl Iterator<Item = &Selection> {
        let published = self.source.iter().map(|source| &source.tables);
        published.chain(self.sink.groups.iter().map(|group| &group.tables))
    }

    /// Whether the table ends up in the target database.
    pub(crate) fn feeds_target(&self, table: &TableName) -> bool {
        let feeds = |group: &sink::config::Group| matches!(group.to, sink::config::To::Postgres);
        self.sink.groups.iter().any(|group| feeds(group) && group.tables.chooses(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables;

    fn read(text: &str) -> Result<Configuration, String> {
        let document = Document::parse(text, std::iter::empty()).expect("the text is TOML");
        Configuration::from(document, Path::new("tributary.toml")).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_sample_is_a_configuration_without_fault() {
        let sample = read(crate::init::SAMPLE).expect("the sample can be used as it stands");
        assert_eq!(sample.prefix, "shop");
        assert!(sample.source.is_some() && sample.http.is_some());
        assert_eq!(sample.sink.groups.len(), 2);
        let tables = tables::named(&sample).expect("the sample names its tables");
        assert!(tables.len() == 2 && tables.iter().all(|table| sample.feeds_target(table)));
    }

    #[test]
    fn the_example_is_a_configuration_without_fault_and_the_one_that_the_readme_shows() {
        let text = include_str!("../../examples/one-table.toml");
        let example = read(text).expect("the example can be used as it stands");
        let tables = tables::named(&example).expect("the example names its table");
        assert!(tables.len() == 1 && example.feeds_target(&tables[0]));
        let readme = include_str!("../../README.md");
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            assert!(readme.contains(&format!("    {line}\n")), "the README does not show {line:?}");
        }
    }

    #[test]
    fn sections_of_parts_that_do_not_run_here_may_be_left_out() {
        let text = "prefix = 'shop.'\n[kafka]\nbrokers = 'kafka://a:1'\n[target]\nurl = 'postgresql://u@h/d'\n\
                    [groups.rdb]\nto = 'postgres'\ntables = ['public.users']";
        let sink_alone = read(text).expect("a sink needs no source");
        assert_eq!(sink_alone.prefix, "shop");
        assert!(matches!(sink_alone.source("source"), Err(Failure::NoSection { section: "source", .. })));
    }

    #[test]
    fn faults_of_all_sections_are_told_at_once() {
        let text = "prefix = 'a b'\n[kafka]\nbroker = 'a:1'\n[source]\ntables = ['x']\n[groups.rdb]\nto = 'mysql'";
        let faults = read(text).expect_err("nothing here is right");
        for key in ["prefix", "kafka.brokers", "kafka.broker", "source.url", "source.tables", "groups.rdb.to"] {
            assert!(faults.contains(key), "{key} is missing in: {faults}");
        }
    }
}
