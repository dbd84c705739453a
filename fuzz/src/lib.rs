//! The source's pure modules that read foreign bytes, and the checks over them, without the clients beside them: what is
//! fuzzed must build in seconds.

#![allow(dead_code, missing_docs)]

#[path = "../../source/src/copy.rs"]
mod copy;
#[path = "../../source/src/foreign.rs"]
pub mod foreign;
#[path = "../../source/src/pgoutput.rs"]
mod pgoutput;
#[path = "../../source/src/relation.rs"]
mod relation;
#[path = "../../source/src/state.rs"]
mod state;
#[path = "../../source/src/visibility.rs"]
mod visibility;
#[path = "../../source/src/window.rs"]
mod window;
