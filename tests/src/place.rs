//! Where the programs are that the tests run: the servers', Kafka's jars, our own binary.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// The PostgreSQL major that is taken when `TRIBUTARY_POSTGRES` names none.
const POSTGRES_DEFAULT: u32 = 15;

/// Every PostgreSQL major that the product speaks with. `./dev test` brings them all.
pub const POSTGRES_MAJORS: [u32; 5] = [14, 15, 16, 17, 18];

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the harness lies in a folder of the repository")
}

/// The PostgreSQL major under test: `TRIBUTARY_POSTGRES`, by default 15.
pub fn postgres_major() -> Result<u32, Error> {
    let Ok(text) = env::var("TRIBUTARY_POSTGRES") else { return Ok(POSTGRES_DEFAULT) };
    let known = text.parse().ok().filter(|major| POSTGRES_MAJORS.contains(major));
    known.ok_or_else(|| Error::new(format!("TRIBUTARY_POSTGRES is {text:?}: one of {POSTGRES_MAJORS:?} is known")))
}

/// The folder with `initdb` and `postgres` of the major under test.
pub fn postgres() -> Result<PathBuf, Error> {
    postgres_of(postgres_major()?)
}

/// The same of a major that a test names.
pub fn postgres_of(major: u32) -> Result<PathBuf, Error> {
    let major = major.to_string();
    let fetched = repository().join(".cache/postgres").join(&major).join("bin");
    let packaged = Path::new("/usr/lib/postgresql").join(&major).join("bin");
    let found = [fetched, packaged].into_iter().find(|bin| bin.join("initdb").is_file()).ok_or_else(|| {
        Error::new(format!(
            "no PostgreSQL {major} in .cache/postgres/{major}/bin or /usr/lib/postgresql/{major}/bin: `./dev test` brings it"
        ))
    })?;
    // Links resolved: the user that runs the server may not be allowed to walk through the repository's own folder.
    found.canonicalize().map_err(Error::during(format!("resolve {}", found.display())))
}

/// `psql`, which not every build of the server has beside it.
pub fn psql() -> PathBuf {
    let beside = postgres().map(|bin| bin.join("psql")).ok().filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from("psql"))
}

/// The class path with Kafka's broker and tools.
pub fn kafka() -> Result<String, Error> {
    let libs = repository().join(".cache/kafka/libs");
    let filled = libs.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    filled
        .then(|| format!("{}/*", libs.display()))
        .ok_or_else(|| Error::new(format!("no Kafka in {}: ./dev brings it", libs.display())))
}

/// Our own binary: `TRIBUTARY_BIN`, else the one built beside the program that runs.
pub fn tributary() -> Result<PathBuf, Error> {
    if let Some(path) = env::var_os("TRIBUTARY_BIN") {
        return Ok(path.into());
    }
    let running = env::current_exe().map_err(Error::during("find the running program"))?;
    // target/debug/stack, or target/debug/deps/e2e-1234.
    running
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("tributary"))
        .find(|path| path.is_file())
        .ok_or_else(|| Error::new("no tributary beside this program: `cargo build -p tributary`, or set TRIBUTARY_BIN"))
}

/// A folder for what one test leaves behind, beside the build: found after a failure, and gone with `cargo clean`.
pub fn leavings(name: &str) -> Result<PathBuf, Error> {
    let running = env::current_exe().map_err(Error::during("find the running program"))?;
    // target/debug/faults, or target/debug/deps/e2e-1234.
    let target = running.ancestors().skip(1).find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let folder = target.unwrap_or(Path::new("/tmp")).join("e2e").join(name);
    fs::create_dir_all(&folder).map_err(Error::during(format!("make {}", folder.display())))?;
    Ok(folder)
}
