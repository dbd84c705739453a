//! End to end: the real binary between real servers. `./dev test` starts what these tests share.

mod bad_input;
mod brokers;
mod commands;
mod crash;
mod ddl;
mod failover;
mod faults;
mod follow;
mod keeper;
mod key_changes;
mod large;
mod lists;
mod neighbours;
mod on_demand;
mod parked;
mod published_once;
mod random;
mod readers;
mod routing;
mod servers;
mod shutdown;
mod tables;
mod types;
mod visibility;
mod zombie;
