//! The only source of chance: a row of numbers that a seed makes, and that can be written down, shortened and played again.

/// Draws numbers, and remembers them.
#[derive(Debug)]
pub(super) struct Dice {
    /// What was drawn, or is to be drawn.
    tape: Vec<u32>,
    at: usize,
    /// What makes new numbers; without it the tape is all there is, and behind its end stand zeros.
    seed: Option<u64>,
}

impl Dice {
    /// Numbers of a seed.
    pub(super) fn of_seed(seed: u64) -> Dice {
        // Neighbouring seeds must not begin alike.
        Dice { tape: Vec::new(), at: 0, seed: Some(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D) }
    }

    /// Numbers that were drawn before, and zeros behind them.
    pub(super) fn replay(tape: &[u32]) -> Dice {
        Dice { tape: tape.to_vec(), at: 0, seed: None }
    }

    /// Everything that was drawn.
    pub(super) fn into_tape(mut self) -> Vec<u32> {
        self.tape.truncate(self.at);
        self.tape
    }

    /// A number below `n`. A zero is the calm choice: nothing breaks, and the first of several is taken.
    pub(super) fn below(&mut self, n: usize) -> usize {
        if self.at == self.tape.len() {
            let drawn = self.seed.as_mut().map_or(0, next);
            self.tape.push(drawn);
        }
        self.at += 1;
        self.tape[self.at - 1] as usize % n.max(1)
    }

    /// Whether something happens that happens in so many of a thousand cases.
    pub(super) fn chance(&mut self, per_mille: usize) -> bool {
        per_mille > 0 && self.below(1000) >= 1000 - per_mille.min(1000)
    }

    /// One of several.
    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len())) }
    }
}

/// SplitMix64: small, and the same on every machine and in every release.
fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 32) as u32
}

/// How many shorter tapes are tried.
const TRIES: usize = 2_000;

/// The shortest tape that still fails, as far as cutting blocks and calming draws finds one.
pub(super) fn shrink(mut tape: Vec<u32>, mut fails: impl FnMut(&[u32]) -> Option<Vec<u32>>) -> Vec<u32> {
    let (mut block, mut tries) = (tape.len() / 2, 0);
    while block > 0 {
        let mut at = 0;
        while at < tape.len() && tries < TRIES {
            tries += 2;
            let end = tape.len().min(at + block);
            let without = [&tape[..at], &tape[end..]].concat();
            let calmed = [&tape[..at], &vec![0; end - at], &tape[end..]].concat();
            // What was drawn of the tape counts: its unused end is cut with it.
            match fails(&without).or_else(|| (calmed != tape).then(|| fails(&calmed)).flatten()) {
                Some(shorter) if shorter != tape => tape = shorter,
                _ => at += block,
            }
        }
        block /= 2;
    }
    tape
}
