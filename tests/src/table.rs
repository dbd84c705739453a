//! A table as a test makes it in the source and in the target.

use schemas::TableName;

/// What a table is made of. The same on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: TableName,
    /// What stands before it: types, for instance.
    pub before: Vec<String>,
    /// What stands between the parentheses of CREATE TABLE.
    pub columns: String,
    /// What follows it: storage, indexes, the replica identity.
    pub after: Vec<String>,
    /// The columns by which its rows are told apart: those of the replica identity.
    pub key: Vec<String>,
}

impl Table {
    /// A table with the replica identity DEFAULT.
    ///
    /// # Panics
    /// When `name` is not of the form `schema.table`.
    pub fn new(name: &str, key: &[&str], columns: &str) -> Table {
        Table {
            name: name.parse().expect("a test names its tables schema.table"),
            before: Vec::new(),
            columns: columns.to_owned(),
            after: Vec::new(),
            key: key.iter().map(|column| (*column).to_owned()).collect(),
        }
    }

    /// Adds a statement in front.
    #[must_use]
    pub fn before(mut self, statement: &str) -> Table {
        self.before.push(statement.to_owned());
        self
    }

    /// Adds a statement behind; `{table}` in it stands for the quoted name.
    #[must_use]
    pub fn after(mut self, statement: &str) -> Table {
        self.after.push(statement.replace("{table}", &self.sql()));
        self
    }

    /// Its name as SQL takes it.
    pub fn sql(&self) -> String {
        format!("{}.{}", quote(&self.name.schema), quote(&self.name.table))
    }

    /// Everything that makes it, schema included.
    pub fn ddl(&self) -> String {
        let mut statements = vec![format!("CREATE SCHEMA IF NOT EXISTS {}", quote(&self.name.schema))];
        statements.extend(self.before.iter().cloned());
        statements.push(format!("CREATE TABLE {} ({})", self.sql(), self.columns));
        statements.extend(self.after.iter().cloned());
        statements.join(";\n")
    }
}

/// An identifier, quoted.
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
