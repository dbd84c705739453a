//! Writing the sample configuration.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Outcome;
use crate::failure::Failure;
use crate::output::print;

/// A configuration that shows every section. It can be read as it stands.
pub(crate) const SAMPLE: &str = include_str!("sample.toml");

/// Writes the sample to `file`, readable by its owner alone: a password is likely to follow. Never overwrites.
pub(crate) fn write(file: &Path) -> Result<Outcome, Failure> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(SAMPLE.as_bytes()));
    match written {
        Ok(()) => {
            print(&format!("wrote {}: put your addresses and tables in, then run `tributary doctor`", file.display()));
            Ok(Outcome::Fine)
        }
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Err(Failure::Exists(file.to_owned())),
        Err(cause) => Err(Failure::Write { file: file.to_owned(), cause }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("tributary.toml");
        write(&file).expect("the folder is empty");
        assert_eq!(std::fs::read_to_string(&file).expect("it was written"), SAMPLE);
        std::fs::write(&file, "mine").expect("it can be changed");
        assert!(matches!(write(&file), Err(Failure::Exists(_))));
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "mine");
        assert!(matches!(write(&folder.path().join("none/x")), Err(Failure::Write { .. })));
    }
}
