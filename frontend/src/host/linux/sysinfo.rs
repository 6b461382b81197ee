//! Facts in a trace about the machine, the program and its use of resources.
//!
//! Nothing here fails: an unknown fact is empty or 0.

use std::env::consts::ARCH;
use std::mem::MaybeUninit;

use super::modules;
use crate::elf::file;
use crate::host::machine::SystemInfo;
use rftrace_format::info::Usage;
use rftrace_format::system;

/// Collects everything about this process.
pub(crate) fn collect() -> SystemInfo {
    let exe = modules::exe_path().ok();
    let [sysname, hostname, release] = kernel_names();
    SystemInfo {
        exe_name: exe.as_deref().map(modules::map_path).unwrap_or_default(),
        build_id: file::build_id(modules::own_exe()).ok().flatten(),
        command_line: command_line(&modules::own_command_line()),
        cpus_online: sysconf(libc::_SC_NPROCESSORS_ONLN).unwrap_or(1),
        cpus_possible: sysconf(libc::_SC_NPROCESSORS_CONF).unwrap_or(1),
        cpu_description: processor(),
        memory: memory(&read_text("/proc/meminfo")),
        kernel: one_line(format!("{sysname} {release}").trim()),
        hostname: one_line(&hostname),
        distribution: distribution(&read_text("/etc/os-release"), &read_text("/etc/lsb-release")),
        usage: usage(),
        load_average: load_average(&read_text("/proc/loadavg")),
        record_date: local_date(seconds(libc::CLOCK_REALTIME).0),
        utc_offset: utc_offset(),
    }
}

/// Asks the kernel about all threads of this process.
pub(crate) fn usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` has room for the one structure that the call writes.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Usage::default();
    }
    // SAFETY: the call succeeded, so it filled the structure.
    unsafe { usage.assume_init() }.into()
}

/// Returns Unix time minus `CLOCK_MONOTONIC` in seconds, rounded to the nearest.
pub(crate) fn utc_offset() -> i64 {
    nearest_difference(seconds(libc::CLOCK_REALTIME), seconds(libc::CLOCK_MONOTONIC))
}

/// Returns the whole seconds nearest to the difference of two times in seconds and nanoseconds.
fn nearest_difference(later: (i64, i64), earlier: (i64, i64)) -> i64 {
    let nanos = later.1 - earlier.1 + 500_000_000;
    later.0 - earlier.0 + nanos.div_euclid(1_000_000_000)
}

/// Arguments end in a NUL each.
pub(crate) fn command_line(arguments: &[u8]) -> String {
    let arguments = arguments.strip_suffix(b"\0").unwrap_or(arguments);
    one_line(&String::from_utf8_lossy(arguments))
}

/// Returns the model name of this machine's processors, as traces show it.
pub fn processor() -> String {
    cpu_description(ARCH, &read_text("/proc/cpuinfo"))
}

fn cpu_description(arch: &str, cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim_end() == "model name").then(|| one_line(value.trim()))
    });
    match (arch, model) {
        ("aarch64", model) => format!("ARM64 {}", model.unwrap_or_default()).trim_end().to_owned(),
        ("riscv64", model) => format!("RISCV64 {}", model.unwrap_or_default()).trim_end().to_owned(),
        (_, Some(model)) if !model.is_empty() => model,
        _ => arch.to_owned(),
    }
}

/// Returns the free memory for programs in bytes, 0 if unknown.
pub(crate) fn available_bytes() -> u64 {
    kib_of(&read_text("/proc/meminfo"), "MemAvailable").unwrap_or(0).saturating_mul(1024)
}

/// Returns a line of `/proc/meminfo` in KiB.
fn kib_of(meminfo: &str, key: &str) -> Option<u64> {
    meminfo.lines().find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix(':')?;
        value.split_ascii_whitespace().next()?.parse().ok()
    })
}

fn memory(meminfo: &str) -> String {
    let gib = |key: &str| {
        let kib = kib_of(meminfo, key);
        let tenths = kib.unwrap_or(0).saturating_mul(10) / (1024 * 1024);
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    format!("{} / {} GB", gib("MemFree"), gib("MemTotal"))
}

fn distribution(os_release: &str, lsb_release: &str) -> String {
    let value = |text: &str, key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        let value = one_line(value.trim().trim_matches(['"', '\'']));
        (!value.is_empty()).then_some(value)
    };
    let name = value(os_release, "PRETTY_NAME").or_else(|| value(lsb_release, "DISTRIB_DESCRIPTION"));
    format!("\"{}\"", name.as_deref().unwrap_or("Unknown"))
}

fn load_average(loadavg: &str) -> [f64; 3] {
    let mut values =
        loadavg.split_ascii_whitespace().map(|value| value.parse().ok().filter(|load: &f64| load.is_finite()));
    [(); 3].map(|()| values.next().flatten().unwrap_or(0.0))
}

/// Returns system name, node name and release.
fn kernel_names() -> [String; 3] {
    let mut names = MaybeUninit::<libc::utsname>::uninit();
    // SAFETY: `names` has room for the one structure that the call writes.
    if unsafe { libc::uname(names.as_mut_ptr()) } != 0 {
        return [const { String::new() }; 3];
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let names = unsafe { names.assume_init() };
    [&names.sysname, &names.nodename, &names.release].map(|field| {
        let bytes: Vec<u8> = field.iter().map(|c| c.to_ne_bytes()[0]).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns `time`, in seconds since 1970, as `Sat Nov 21 03:38:20 2026` in local time.
pub(crate) fn local_date(time: i64) -> String {
    let mut local = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the type, and the call keeps neither.
    if unsafe { libc::localtime_r(&time, local.as_mut_ptr()) }.is_null() {
        return String::new();
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let local = unsafe { local.assume_init() };
    let name = |names: &'static str, index: i32| {
        let start = usize::try_from(index).unwrap_or(0) * 3;
        names.get(start..start + 3).unwrap_or("???")
    };
    format!(
        "{} {} {:>2} {:02}:{:02}:{:02} {}",
        name("SunMonTueWedThuFriSat", local.tm_wday),
        name("JanFebMarAprMayJunJulAugSepOctNovDec", local.tm_mon),
        local.tm_mday,
        local.tm_hour,
        local.tm_min,
        local.tm_sec,
        i64::from(local.tm_year) + 1900,
    )
}

/// Returns seconds and nanoseconds of `clock`, or 0.
fn seconds(clock: libc::clockid_t) -> (i64, i64) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid to write to. On failure it stays as it is.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec, time.tv_nsec)
}

fn sysconf(name: libc::c_int) -> Option<u64> {
    // SAFETY: the call takes no pointers.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok().filter(|&value| value > 0)
}

fn read_text(path: &str) -> String {
    system::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Returns `text` with spaces in place of control characters, such as ends of lines.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collects_this_machine() {
        let info = collect();
        assert_eq!(info.exe_name, std::env::current_exe().unwrap().to_str().unwrap());
        assert!(info.build_id.as_ref().is_none_or(|id| id.len() % 2 == 0));
        assert!(info.command_line.starts_with(&std::env::args().next().unwrap()));
        assert!(1 <= info.cpus_online && info.cpus_online <= info.cpus_possible);
        assert!(!info.cpu_description.is_empty());
        assert!(info.memory.ends_with(" GB"));
        assert!(info.kernel.starts_with("Linux "));
        assert!(info.distribution.starts_with('"') && info.distribution.ends_with('"'));
        assert!(info.usage.max_resident_kib > 0 && info.usage.minor_faults > 0);
        let texts = [&info.exe_name, &info.command_line, &info.hostname, &info.kernel, &info.record_date];
        assert!(texts.iter().all(|text| !text.contains('\n')));
        assert_eq!(info.record_date.len(), 24, "{}", info.record_date);
    }

    #[test]
    fn offset_is_the_time_of_boot() {
        let boot = read_text("/proc/stat").lines().find_map(|line| line.strip_prefix("btime ")?.parse::<i64>().ok());
        // A machine that was suspended counts differently; it booted earlier at least.
        assert!(boot.is_none_or(|boot| boot <= utc_offset() + 1));
        // The difference of the two clocks is that of now, or of a moment ago.
        let before = (seconds(libc::CLOCK_REALTIME).0, seconds(libc::CLOCK_MONOTONIC).0);
        let offset = utc_offset();
        let after = (seconds(libc::CLOCK_REALTIME).0, seconds(libc::CLOCK_MONOTONIC).0);
        assert!((before.0 - after.1 - 1..=after.0 - before.1 + 1).contains(&offset), "{before:?}, {offset}, {after:?}");
    }

    #[test]
    fn differences_are_rounded() {
        let nanos = |tenths: i64| tenths * 100_000_000;
        for (later, earlier, expected) in [(2, 8, 6), (9, 3, 8), (2, 7, 7), (5, 5, 7), (0, 6, 6), (6, 0, 8)] {
            assert_eq!(
                nearest_difference((10, nanos(later)), (3, nanos(earlier))),
                expected,
                "10.{later} - 3.{earlier}"
            );
        }
    }

    #[test]
    fn missing_files_are_neutral() {
        assert_eq!(command_line(b""), "");
        assert!(!cpu_description(ARCH, "").is_empty());
        assert_eq!(memory(""), "0.0 / 0.0 GB");
        assert_eq!(distribution("", ""), "\"Unknown\"");
        assert_eq!(load_average(""), [0.0; 3]);
        assert_eq!(read_text("/proc/does-not-exist"), "");
        assert_eq!(sysconf(-1), None);
    }

    #[test]
    fn parses_the_files() {
        assert_eq!(command_line(b"/bin/a\0-x\0two\nlines\0"), "/bin/a -x two lines");
        assert_eq!(command_line(b"a\0\0b\xff"), "a  b\u{fffd}");
        let meminfo = "MemTotal:       24641536 kB\nMemFree:        24020000 kB\nMemAvailable:   1 kB\n";
        assert_eq!(memory(meminfo), "22.9 / 23.5 GB");
        assert_eq!(memory("MemTotal: 99999999999999999999 kB\nMemFree: x"), "0.0 / 0.0 GB");
        let os_release = "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(distribution(os_release, ""), "\"Debian GNU/Linux 12 (bookworm)\"");
        assert_eq!(distribution("PRETTY_NAME=Alpine\n", ""), "\"Alpine\"");
        assert_eq!(distribution("PRETTY_NAME=\n", "DISTRIB_DESCRIPTION='Old'\n"), "\"Old\"");
        assert_eq!(load_average("0.50 1.25 NaN 1/95 3000\n"), [0.5, 1.25, 0.0]);
    }

    #[test]
    fn describes_the_cpu() {
        let named = "processor\t: 0\nmodel name\t: AMD EPYC \nmodel name\t: other\n";
        assert_eq!(cpu_description("x86_64", named), "AMD EPYC");
        assert_eq!(cpu_description("x86_64", "model name\t:\n"), "x86_64");
        assert_eq!(cpu_description("aarch64", "CPU part\t: 0xd0c\n"), "ARM64");
    }

    #[test]
    fn dates() {
        let date = local_date(1_700_000_000);
        // Time zones move it by up to a day.
        assert!(["Tue Nov 14 ", "Wed Nov 15 "].iter().any(|day| date.starts_with(day)), "{date}");
        assert!(date.ends_with(":20 2023"), "{date}");
        assert_eq!(local_date(1_699_300_000).as_bytes()[8], b' ');
        assert_eq!(local_date(i64::MAX), "");
    }
}
