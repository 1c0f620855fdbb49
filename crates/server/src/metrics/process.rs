//! What the system knows of this process, where it says so in `/proc`.

use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::text::{Family, Kind, Value};

/// Memory, processor time, descriptors and the start of this process; what cannot be read is
/// absent.
pub(super) fn families() -> Vec<Family> {
    let mut all = Vec::new();
    let mut gauge = |name, help, value: Option<Value>| {
        let mut family = Family::new(name, Kind::Gauge, help);
        value.into_iter().for_each(|value| family.push(Vec::new(), value));
        all.push(family);
    };
    let whole = |value: Option<u64>| value.map(Value::Whole);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = |field: &str| kilobytes(&status, field);
    let resident = "Memory of this process that is in use.";
    gauge("process_resident_memory_bytes", resident, whole(memory("VmRSS:")));
    let reserved = "Addresses that this process has reserved.";
    gauge("process_virtual_memory_bytes", reserved, whole(memory("VmSize:")));
    let open = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
    let open = open.and_then(|open| u64::try_from(open).ok());
    gauge("process_open_fds", "Descriptors that are open.", whole(open));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    gauge("process_max_fds", "Descriptors that may be.", whole(descriptors(&limits)));
    let start = "When this process started, in seconds since 1970.";
    gauge("process_start_time_seconds", start, started().map(Value::Millionths));
    let mut used = Family::new(
        "process_cpu_seconds",
        Kind::Counter,
        "Processor time that this process has used.",
    );
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = ticks(&stat).map(|ticks| Value::Millionths(i128::from(ticks) * TICK_US));
    ticks.into_iter().for_each(|value| used.push(Vec::new(), value));
    all.push(used);
    all
}

/// A field of `status`, which is in units of 1,024 bytes.
fn kilobytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
}

fn descriptors(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time: the fields 14 and 15, counted behind the name, which may have spaces.
fn ticks(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    user.parse::<u64>().ok()?.checked_add(system.parse().ok()?)
}

/// When the process started, in microseconds since 1970: how long the machine runs, less the tick
/// that it started at.
fn started() -> Option<i128> {
    static STARTED: std::sync::OnceLock<Option<i128>> = std::sync::OnceLock::new();
    *STARTED.get_or_init(|| {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let (_, behind) = stat.rsplit_once(')')?;
        let tick: i128 = behind.split_whitespace().nth(19)?.parse().ok()?;
        let before = Instant::now();
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let now = SystemTime::now().checked_sub(before.elapsed())?;
        let (seconds, parts) = uptime.split_whitespace().next()?.split_once('.')?;
        let up = seconds.parse::<i128>().ok()? * 1_000_000 + parts.parse::<i128>().ok()? * 10_000;
        let now = i128::try_from(now.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()?;
        Some(now - up + tick * TICK_US)
    })
}

/// Linux tells every program that it ticks a hundred times a second.
const TICK_US: i128 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found() {
        assert_eq!(kilobytes("VmSize:\t 10 kB\nVmRSS:\t   2 kB\n", "VmRSS:"), Some(2_048));
        assert_eq!(descriptors("Max open files            1024     4096   files\n"), Some(1_024));
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4 5 6 7 8 120 30 0 0 20 0 3 0 999 0";
        assert_eq!(ticks(stat), Some(150));
        assert_eq!(ticks("nonsense"), None);
    }

    #[test]
    fn this_process_has_started_and_uses_memory() {
        let families = families();
        let all = families.iter().all(|family| family.samples.len() == 1);
        assert!(all, "{families:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        let started = started().expect("linux");
        assert!(started > 0 && started <= i128::try_from(now).expect("fits") + 1_000_000);
    }
}
