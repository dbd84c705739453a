//! The configuration file while it is changed: read under a lock, and replaced whole by one of the same owner and rights.
//!
//!     lock ─▶ still the file of this name? ─▶ text ─▶ (checked by others) ─▶ new file beside it ─▶ renamed over it ─▶ unlocked
//!
//! It may hold passwords, so the new file is nobody else's from its first moment on.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Locked until it is dropped.
pub(super) struct Held {
    /// What links lead to.
    path: PathBuf,
    file: File,
    /// As it was found.
    pub(super) text: String,
}

impl Held {
    /// Waits for whoever else changes it.
    pub(super) fn open(path: &Path) -> Result<Held, Failure> {
        Held::opened(path).map_err(|cause| Failure::Read { file: path.to_owned(), cause })
    }

    fn opened(path: &Path) -> io::Result<Held> {
        loop {
            // A link stays one: what it leads to is replaced.
            let path = path.canonicalize()?;
            let mut file = File::open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::Error(cause)) => return Err(cause),
                Err(TryLockError::WouldBlock) => {
                    eprintln!("waiting for another command that changes {}", path.display());
                    file.lock()?;
                }
            }
            // The one whose lock we waited for has put another file in its place.
            let (held, there) = (file.metadata()?, path.metadata()?);
            if (held.dev(), held.ino()) == (there.dev(), there.ino()) {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                return Ok(Held { path, file, text });
            }
        }
    }

    /// Whole or not at all, and only where it is another text.
    pub(super) fn replace_by(self, text: &str) -> Result<(), Failure> {
        if text == self.text {
            return Ok(());
        }
        let mut name = std::ffi::OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(format!(".{}.new", std::process::id()));
        let beside = self.path.with_file_name(name);
        let replaced = self.beside(&beside, text).and_then(|()| std::fs::rename(&beside, &self.path));
        if replaced.is_err() {
            // It may not be there at all.
            let _left = std::fs::remove_file(&beside);
        }
        replaced.map_err(|cause| Failure::Write { file: self.path.clone(), cause })
    }

    fn beside(&self, beside: &Path, text: &str) -> io::Result<()> {
        // One of our number that was left behind by a process that died.
        match std::fs::remove_file(beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside)?;
        let (was, is) = (self.file.metadata()?, new.metadata()?);
        if (was.uid(), was.gid()) != (is.uid(), is.gid()) {
            fchown(&new, Some(was.uid()), Some(was.gid()))?;
        }
        new.set_permissions(was.permissions())?;
        new.write_all(text.as_bytes())?;
        new.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn no_change_of_two_at_once_is_lost() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("tributary.toml");
        std::fs::write(&path, "").expect("it is written");
        std::thread::scope(|scope| {
            for n in 0..16 {
                let path = &path;
                scope.spawn(move || {
                    let held = Held::open(path).expect("it can be read");
                    let text = format!("{}{n}\n", held.text);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    held.replace_by(&text).expect("it can be written");
                });
            }
        });
        let text = std::fs::read_to_string(&path).expect("it can be read");
        assert_eq!(text.lines().count(), 16, "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn the_new_file_has_owner_and_rights_of_the_old_one_and_a_link_stays_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, link) = (folder.path().join("tributary.toml"), folder.path().join("link.toml"));
        std::fs::write(&path, "a").expect("it is written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("it is ours");
        // Only root may give files away.
        let _given = chown(&path, Some(12_345), Some(12_345));
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let before = path.metadata().expect("it is there");
        Held::open(&link).expect("it can be read").replace_by("b").expect("it can be written");
        let after = path.metadata().expect("it is there");
        let rights = |of: &std::fs::Metadata| (of.uid(), of.gid(), of.mode());
        assert_eq!(rights(&before), rights(&after));
        assert!(link.symlink_metadata().expect("it is there").is_symlink());
        assert_eq!(std::fs::read_to_string(&link).expect("it can be read"), "b");
    }
}
