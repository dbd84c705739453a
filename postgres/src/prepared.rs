//! Queries with fixed texts that are asked for one thing after the other, as for each of many tables: parsed and planned once.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

/// Where queries are asked.
pub trait Ask: Sync {
    /// All rows of the answer.
    fn ask(
        &self,
        query: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

impl Ask for Client {
    async fn ask(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.query(query, parameters).await
    }
}

/// A connection that remembers what it was asked.
pub struct Prepared {
    client: Arc<Client>,
    statements: Mutex<HashMap<String, Statement>>,
}

impl Prepared {
    /// Over `client`. Texts that are made for one occasion are not to be asked: none is ever forgotten.
    pub fn new(client: impl Into<Arc<Client>>) -> Prepared {
        Prepared { client: client.into(), statements: Mutex::default() }
    }

    async fn statement(&self, query: &str) -> Result<Statement, Error> {
        let known = self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(query).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let new = self.client.prepare(query).await?;
        self.statements.lock().unwrap_or_else(PoisonError::into_inner).insert(query.to_owned(), new.clone());
        Ok(new)
    }
}

impl Ask for Prepared {
    async fn ask(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.client.query(&self.statement(query).await?, parameters).await
    }
}

/// For everything else that a connection does.
impl Deref for Prepared {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}
