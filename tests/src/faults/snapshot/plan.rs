//! What befalls a load in one trial: drawn from the seed alone, so that a seed repeats it.
//!
//! Pure.

use std::fmt;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::faults::plan::{OF_FIRST_START, OF_LOAD, OF_START, OF_STREAM};

/// Who is in the database beside writers and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Company {
    /// Nobody.
    Nobody,
    /// A synchronous standby that is slow: commits stand in the WAL long before they are visible.
    SlowStandby,
    /// Transactions that are open for long, and prepared ones: from before the slot is made on.
    LongTransactions,
    /// Somebody who alters tables, in ways that rewrite their rows too, and truncates them.
    Ddl,
}

impl Company {
    /// All there are.
    pub const ALL: [Company; 4] = [Company::Nobody, Company::SlowStandby, Company::LongTransactions, Company::Ddl];
}

/// One end of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// When it comes to a point for the nth time.
    At(&'static str, u32),
    /// After so many milliseconds.
    After(u32),
}

/// What befalls a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Who else is there.
    pub company: Company,
    /// How many rows a chunk has at most.
    pub chunk_rows: i64,
    /// How many readers there are.
    pub readers: i64,
    /// How the source dies, one time after the other.
    pub deaths: Vec<Death>,
}

impl Plan {
    /// The plan of a seed, with so many deaths at most.
    pub fn draw(seed: u64, deaths_max: usize) -> Plan {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let company = *Company::ALL.choose(random).expect("there are some");
        let chunk_rows = random.random_range(2..=12);
        let deaths = (0..random.random_range(deaths_max.div_ceil(2)..=deaths_max)).map(|n| death(random, n == 0));
        let deaths = deaths.collect();
        Plan { company, chunk_rows, readers: random.random_range(1..=4), deaths }
    }
}

fn death(random: &mut ChaCha8Rng, is_first: bool) -> Death {
    let points: &[&str] = match random.random_range(0..10) {
        0 if is_first => &OF_FIRST_START,
        0 => &OF_START,
        1 => &OF_STREAM,
        2 | 3 if is_first => &OF_FIRST_START,
        2..=6 => &OF_LOAD,
        _ => return Death::After(random.random_range(0..1_500)),
    };
    let point = *points.choose(random).expect("there are points");
    let time = match point {
        point if OF_LOAD.contains(&point) => random.random_range(1..=12),
        point if OF_STREAM.contains(&point) && point != "reported" => random.random_range(1..=40),
        _ => 1,
    };
    Death::At(point, time)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let company = match self.company {
            Company::Nobody => "alone",
            Company::SlowStandby => "with a slow standby",
            Company::LongTransactions => "among long transactions",
            Company::Ddl => "among DDL",
        };
        write!(f, "{company}, chunks of {} rows, readers: {}", self.chunk_rows, self.readers)?;
        self.deaths.iter().try_for_each(|death| match death {
            Death::At(point, time) => write!(f, ", dies at {point} ({time})"),
            Death::After(ms) => write!(f, ", killed after {ms} ms"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_repeats_its_plan_and_a_campaign_draws_everything() {
        let plans: Vec<Plan> = (1..=200).map(|seed| Plan::draw(seed, 20)).collect();
        assert_eq!(plans[6], Plan::draw(7, 20));
        assert!(plans.iter().all(|plan| (10..=20).contains(&plan.deaths.len())));
        let company: HashSet<String> = plans.iter().map(|plan| format!("{:?}", plan.company)).collect();
        assert_eq!(company.len(), Company::ALL.len());
        let deaths = plans.iter().flat_map(|plan| &plan.deaths);
        let drawn: HashSet<&str> =
            deaths.filter_map(|death| if let Death::At(point, _) = death { Some(*point) } else { None }).collect();
        for point in [&OF_FIRST_START[..], &OF_START, &OF_LOAD, &OF_STREAM].concat() {
            assert!(drawn.contains(point), "nobody dies at {point}");
        }
    }
}
