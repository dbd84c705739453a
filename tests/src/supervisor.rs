//! Nothing outlives us: a small shell that kills our processes and removes our folders once we are gone, however we went.
//!
//! It reads from a pipe what there is to watch. The pipe ends when this process does, also by `kill -9`.
//! (The kernel's parent-death signal does not serve: it is cleared when the user changes, and fires when a *thread* ends.)

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

const SCRIPT: &str = r#"
watched=" " folders=""
while read -r word what signal; do
    case $word in
        group) watched="$watched$what:$signal " ;;
        gone) watched=$(printf %s "$watched" | sed "s/ $what:[A-Z]* / /") ;;
        folder) folders="$folders $what" ;;
    esac
done
for group in $watched; do kill -s "${group#*:}" -- -"${group%:*}" 2>/dev/null; done
tries=0
for group in $watched; do
    while kill -s 0 -- -"${group%:*}" 2>/dev/null && [ $tries -lt 40 ]; do sleep 0.1; tries=$((tries + 1)); done
    kill -s KILL -- -"${group%:*}" 2>/dev/null
done
rm -rf $folders
"#;

// Never dropped, so never closed before this process ends.
static SHELL: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    let shell = Command::new("/bin/sh")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A group of its own: Ctrl-C must reach us and not the one who cleans up after us.
        .process_group(0)
        .spawn()
        .expect("/bin/sh starts");
    Mutex::new(shell)
});

/// Should we die, this process group gets `signal`, and four seconds later SIGKILL.
pub fn watch_group(group: Pid, signal: Signal) {
    tell(&format!("group {group} {}", signal.as_str().trim_start_matches("SIG")));
}

/// This process group has ended; its number may soon be another's.
pub fn forget_group(group: Pid) {
    tell(&format!("gone {group}"));
}

/// Should we die, this folder goes. Its path holds no white space, as temporary folders do not.
pub fn watch_folder(folder: &Path) {
    tell(&format!("folder {}", folder.display()));
}

fn tell(line: &str) {
    let mut shell = SHELL.lock().expect("no holder of this lock panics");
    let pipe = shell.stdin.as_mut().expect("its standard input is a pipe");
    writeln!(pipe, "{line}").and_then(|()| pipe.flush()).expect("the supervisor lives as long as we do");
}
