//! Free ports on the loopback.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex};

use rand::Rng;

/// Below what Linux hands to outgoing connections (32768 upwards): a server that is killed finds its port free again.
const RANGE: std::ops::Range<u16> = 14_000..32_000;

static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A port that nobody listens on, and that this process has not given out before.
///
/// # Panics
/// When a thousand ports drawn at random are all taken.
pub fn free() -> u16 {
    let mut given = GIVEN.lock().expect("no holder of this lock panics");
    (0..1000)
        .map(|_| rand::rng().random_range(RANGE))
        .find(|port| !given.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .inspect(|port| {
            given.insert(*port);
        })
        .expect("there is a free port between 14000 and 32000")
}
