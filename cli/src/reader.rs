//! Whether a source runs, as its server shows it: somebody reads from the slot.

use postgres::Client;
use source::keeper;

/// Looks for the reader of a slot, again and again. Between two of the source's own connections the slot is free for a moment,
/// so one look that finds nobody says nothing.
pub(crate) struct Reader<'a> {
    client: &'a Client,
    slot: &'a str,
    /// How many looks in a row have found nobody.
    absent: u32,
    absent_max: u32,
}

impl<'a> Reader<'a> {
    /// Of `slot`. After so many looks in a row that find nobody there is none.
    pub(crate) fn of(client: &'a Client, slot: &'a str, absent_max: u32) -> Reader<'a> {
        Reader { client, slot, absent: 0, absent_max }
    }

    /// Looks once. Whether there is none.
    pub(crate) async fn is_gone(&mut self) -> Result<bool, postgres::Error> {
        let look = keeper::look(self.client, self.slot).await?;
        let is_there = look.slot.is_some_and(|slot| slot.active_pid.is_some());
        self.absent = if is_there { 0 } else { self.absent + 1 };
        Ok(self.absent >= self.absent_max)
    }
}
