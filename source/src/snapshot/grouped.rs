//! Which keys of a list are equal, as the server says: those are read together, since they have one answer.
//!
//! I/O only. What a list is read for, others know.

use postgres::tokio_postgres::Row;

use super::locked::Session;
use super::{KEYS_MAX, Target, listed};
use crate::window::Part;
use crate::{Error, catalog};

/// What was found of a list.
pub enum Grouped {
    /// What to read of it next.
    Next(Part),
    /// The table was renamed meanwhile.
    Again,
    /// There is no such table any more.
    Dropped,
}

impl Session {
    /// The first keys of a list that can be read without the others, and all that can name no row of the table: they are no
    /// values of the columns that they name, or there are no such columns.
    pub async fn next_of(&self, table: &Target, keys: &[String]) -> Result<Grouped, Error> {
        let Some(called) = catalog::called(&self.client, table.oid).await? else { return Ok(Grouped::Dropped) };
        let (groups, void) = match self.groups(table, &called, keys).await {
            Ok(found) => found,
            Err(error) if matches!(error.sqlstate(), Some("42P01" | "3F000")) => return Ok(Grouped::Again),
            Err(error) => return Err(error.into()),
        };
        let mut keys = Vec::new();
        for group in groups {
            // More only where more than that are equal.
            if !keys.is_empty() && keys.len() + group.len() > KEYS_MAX {
                break;
            }
            keys.extend(group);
        }
        Ok(Grouped::Next(Part::List { keys, void, rows: Vec::new() }))
    }

    async fn groups(
        &self,
        table: &Target,
        called: &str,
        keys: &[String],
    ) -> Result<(Vec<Vec<String>>, Vec<String>), postgres::Error> {
        let failed = |cause| postgres::Error::statement(format!("look at a list of keys of {}", table.name), cause);
        let (mut groups, mut void, mut open) = (Vec::new(), Vec::new(), vec![keys]);
        // Nothing but a key's own text can be at fault.
        let mut is_sound = false;
        while let Some(part) = open.pop() {
            if let Some(query) = listed::groups(called, part) {
                match self.client.query(&query, &[]).await.map_err(failed) {
                    Ok(rows) => {
                        let key = |number: i32| part[usize::try_from(number).unwrap_or_default()].clone();
                        let group = |row: &Row| row.get::<_, Vec<i32>>(0).into_iter().map(key).collect();
                        groups.extend(rows.iter().map(group));
                        continue;
                    }
                    Err(error) if listed::may_be_of_keys(&error) => {}
                    Err(error) => return Err(error),
                }
                if let ([one], false) = (part, is_sound) {
                    match self.client.query(&listed::bare(called, &listed::columns_of(one)), &[]).await.map_err(failed)
                    {
                        Ok(_) => is_sound = true,
                        Err(error) if listed::is_no_key(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            match part {
                [] => {}
                [one] => void.push(one.clone()),
                // One of them is at fault: looked for by halves.
                several => {
                    let (first, second) = several.split_at(several.len() / 2);
                    open.extend([second, first]);
                }
            }
        }
        Ok((groups, void))
    }
}
