//! A `tributary.toml` in the making: keys by their dotted path, so that a test says only what it is about.

use toml::{Table, Value};

use crate::Error;

/// The configuration of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    root: Table,
    environment: Vec<(String, String)>,
}

impl Configuration {
    /// What a file holds.
    pub fn parse(text: &str) -> Result<Configuration, Error> {
        let root = text.parse().map_err(Error::during("read a configuration"))?;
        Ok(Configuration { root, environment: Vec::new() })
    }

    /// Sets `section.key`. Sections that do not exist are made.
    pub fn set(&mut self, path: &str, value: impl Into<Value>) -> &mut Configuration {
        let (sections, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut table = &mut self.root;
        for section in sections.split('.').filter(|section| !section.is_empty()) {
            let entry = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            table = entry.as_table_mut().expect("a path does not lead through a value");
        }
        table.insert(key.to_owned(), value.into());
        self
    }

    /// Takes a key, or a whole section, away.
    pub fn remove(&mut self, path: &str) -> &mut Configuration {
        let (sections, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut table = Some(&mut self.root);
        for section in sections.split('.').filter(|section| !section.is_empty()) {
            table = table.and_then(|table| table.get_mut(section)?.as_table_mut());
        }
        if let Some(table) = table {
            table.remove(key);
        }
        self
    }

    /// Sets an environment variable for the process: secrets come this way, as they do in earnest.
    pub fn environment(&mut self, name: &str, value: &str) -> &mut Configuration {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The environment that goes with the file.
    pub fn variables(&self) -> &[(String, String)] {
        &self.environment
    }

    /// The file.
    pub fn render(&self) -> String {
        toml::to_string(&self.root).expect("a table of plain values is TOML")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_set_and_removed_by_path() {
        let mut configuration = Configuration::default();
        configuration
            .set("prefix", "shop")
            .set("source.topics.partitions", 4)
            .set("source.tables", vec!["public.users"]);
        configuration.set("http.listen", "127.0.0.1:1").remove("http").remove("source.nothing.here");
        let expected =
            "prefix = \"shop\"\n\n[source]\ntables = [\"public.users\"]\n\n[source.topics]\npartitions = 4\n";
        assert_eq!(configuration.render(), expected);
    }
}
