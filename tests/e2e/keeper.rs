//! The slot's keeper: an idle slot moves on while others write, and whatever becomes of a slot is said with its remedy.

mod idle;
