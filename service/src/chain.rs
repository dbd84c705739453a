//! An error with all its causes on one line, for whoever logs it.

use std::error::Error;
use std::fmt;

/// Prints `error` and its causes: `cannot apply shop.orders: connection reset`.
///
/// Our errors do not repeat their cause in their own text, so this is the one way to print them whole.
pub fn chain<'e>(error: &'e (dyn Error + 'e)) -> Chain<'e> {
    Chain(error)
}

/// See [`chain`].
pub struct Chain<'e>(&'e (dyn Error + 'e));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        f.write_str(&text)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Libraries do repeat their cause in their own text; once is enough.
            if !text.ends_with(&next) {
                write!(f, ": {next}")?;
            }
            text = next;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    fn check(layers: &[&'static str], expected: &str) {
        let error = layers.iter().rev().fold(None, |source, &text| Some(Box::new(Layer { text, source })));
        assert_eq!(chain(&*error.expect("at least one layer")).to_string(), expected);
    }

    #[test]
    fn every_cause_is_printed_once() {
        check(&["cannot apply"], "cannot apply");
        check(&["cannot apply", "connection reset"], "cannot apply: connection reset");
        check(&["cannot apply", "db error: refused", "refused"], "cannot apply: db error: refused");
    }
}
