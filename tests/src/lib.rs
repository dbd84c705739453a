//! Real servers, processes, workloads and the oracle for the end-to-end tests.
//!
//!     servers ──▶ stack (one of each for a whole run) ──▶ World (one test's databases, slot, prefix, groups)
//!                                                          │
//!                    workload writes ──▶ source ──▶ the real `tributary` ──▶ target, Redis
//!                                          └──────────── oracle compares ──────────┘
//!
//! Knows the product by its command line, its configuration, its topics and its tables alone, as an operator does.

pub mod configuration;
pub mod error;
pub mod faults;
pub mod logs;
pub mod oracle;
pub mod place;
pub mod playground;
pub mod port;
pub mod process;
pub mod proxy;
pub mod seed;
pub mod servers;
pub mod stack;
pub mod supervisor;
pub mod table;
pub mod topics;
pub mod until;
pub mod workload;
pub mod world;

pub use error::Error;
pub use world::World;
