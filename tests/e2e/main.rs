//! End to end: the real binary between real servers. `./dev test` starts what these tests share.

mod servers;
