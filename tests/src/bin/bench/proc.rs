//! What Linux tells of processes under /proc. Every answer is absent once the process is gone.

use std::fs;

/// In what /proc counts CPU time: USER_HZ, 100 on every machine that we build for.
const TICKS_A_SECOND: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    parent: u32,
    own: f64,
    of_children_gone: f64,
}

/// The process that started it.
pub(crate) fn parent(process: u32) -> Option<u32> {
    stat(process).map(|stat| stat.parent)
}

/// CPU seconds of all threads of a process, in user mode and in the kernel.
pub(crate) fn cpu_seconds(process: u32) -> Option<f64> {
    stat(process).map(|stat| stat.own)
}

/// The same of a process and all its children, living and gone: what PostgreSQL is.
pub(crate) fn family_cpu_seconds(process: u32) -> Option<f64> {
    loop {
        let before = stat(process)?;
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
        let children = children.split_whitespace().filter_map(|child| cpu_seconds(child.parse().ok()?));
        let living: f64 = children.sum();
        // A child that goes while we count may stand in neither sum.
        if stat(process)?.of_children_gone == before.of_children_gone {
            return Some(before.own + before.of_children_gone + living);
        }
    }
}

/// The same of the whole machine, with what its host took away.
pub(crate) fn machine_cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|i| fields.get(*i)).sum::<f64>();
    Some(busy / TICKS_A_SECOND)
}

/// The most memory that a process has had resident, in bytes.
pub(crate) fn peak_memory_bytes(process: u32) -> Option<u64> {
    field(process, "status", "VmHWM:").map(|kib| kib * 1024)
}

/// What a process has written to anything so far, in bytes.
pub(crate) fn written_bytes(process: u32) -> Option<u64> {
    field(process, "io", "wchar:")
}

fn field(process: u32, file: &str, label: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

fn stat(process: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // pid (name) state …; the name may hold anything, so from the last parenthesis on.
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: (ticks(11)? + ticks(12)?) / TICKS_A_SECOND,
        of_children_gone: (ticks(13)? + ticks(14)?) / TICKS_A_SECOND,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_measured() {
        let process = std::process::id();
        assert!(cpu_seconds(process).is_some_and(|seconds| seconds >= 0.0));
        assert!(family_cpu_seconds(process) >= cpu_seconds(process));
        assert!(peak_memory_bytes(process).is_some_and(|bytes| bytes > 100_000));
        assert!(machine_cpu_seconds().is_some_and(|seconds| seconds > 0.0));
    }
}
