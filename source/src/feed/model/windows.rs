//! The rules of windows, taken out: what a message of the stream would tell the windows is kept from them, or told otherwise.

use schemas::state::Table;
use schemas::write::Cell;

use super::Rule;
use super::world::Outside;
use crate::feed::Feed;
use crate::pgoutput::{Message, Old};
use crate::window::{ChunkId, Image, Key, Kind, Windows};

/// How much may be kept of touches. Without its rule the bound is kept in another way.
pub(super) fn touch_bytes_max(outside: &Outside) -> usize {
    if outside.keeps(Rule::OverBudgetGivesUp) { outside.weather.touch_bytes } else { usize::MAX }
}

/// What of a message the windows do not hear without its rule.
fn is_kept_from_windows(out: Option<Rule>, message: &Message<'_>) -> bool {
    match message {
        Message::Insert { .. } => out == Some(Rule::WholeRemoves),
        Message::Update { old: Old::None, new, .. } if new.contains(&Cell::Unchanged) => {
            out == Some(Rule::PatchesOverlay)
        }
        Message::Update { old: Old::None, .. } => out == Some(Rule::WholeRemoves),
        Message::Update { .. } => out == Some(Rule::MovesRemove),
        Message::Delete { .. } => out == Some(Rule::DeleteRemoves),
        Message::Truncate { .. } => out == Some(Rule::TruncateEmpties),
        Message::Relation(_) => out == Some(Rule::OlderIsReadAgain),
        _ => false,
    }
}

/// To be called before a message is fed. What is returned goes to [`behind`].
pub(super) fn before(feed: &mut Feed, out: Option<Rule>, message: &Message<'_>) -> Option<Windows> {
    if let Message::Logical { content, .. } = message
        && let Some(id) = marked(content)
    {
        at_marker(feed, out, id);
    }
    is_kept_from_windows(out, message).then(|| std::mem::replace(&mut feed.windows, Windows::new(usize::MAX)))
}

/// To be called behind it.
pub(super) fn behind(feed: &mut Feed, outside: &Outside, aside: Option<Windows>, message: &Message<'_>, xid: u32) {
    if let Some(windows) = aside {
        feed.windows = windows;
    }
    match message {
        Message::Update { oid, old: Old::None, new }
            if new.contains(&Cell::Unchanged) && !outside.keeps(Rule::PatchesOverlay) =>
        {
            let Cell::Text(key) = new[0] else { return };
            let key = Key { text: [b"{\"id\":", key, b"}"].concat().into(), canonical: None };
            feed.windows.touch(*oid, xid, Kind::Superseded(key, Image::Unknown));
        }
        _ => {}
    }
    if !outside.keeps(Rule::OverBudgetGivesUp) {
        feed.windows.forget_touches(outside.weather.touch_bytes);
    }
}

fn at_marker(feed: &mut Feed, out: Option<Rule>, id: ChunkId) {
    let Some(chunk) = feed.windows.chunk(id) else { return };
    let (oid, fingerprint) = (chunk.relation.oid, chunk.fingerprint);
    let Some(table) = feed.state.table(oid).filter(|table| !table.columns.is_empty()) else { return };
    match out {
        Some(Rule::TouchesInOrder) => feed.windows.turn_touches(),
        Some(Rule::ImagesAnswer) => feed.windows.lose_images(true),
        Some(Rule::PartlyIsReadAgain) => feed.windows.lose_images(false),
        // As if its shape had been announced.
        Some(Rule::NewerIsAnnounced) => {
            let table = Table { fingerprint, ..table.clone() };
            feed.state.set_table(oid, table);
        }
        // As if the stream had said that this is not its shape.
        Some(Rule::NewerIsTaken) if table.fingerprint != fingerprint => feed.windows.relation(oid),
        _ => {}
    }
}

fn marked(content: &[u8]) -> Option<ChunkId> {
    std::str::from_utf8(content).ok()?.strip_prefix("chunk/")?.parse().ok()
}
