//! Running the program.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Signals, SignalsInfo};

use super::Ended;

/// The file name of the library.
const PRELOAD: &str = "rftrace-preload";

/// Finds the library that is preloaded.
pub(crate) fn find_preload() -> Result<PathBuf> {
    if let Some(path) = env::var_os("RFTRACE_PRELOAD") {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("RFTRACE_PRELOAD names {}, which is not there", path.display());
        }
        return std::path::absolute(&path).with_context(|| path.display().to_string());
    }
    let exe = env::current_exe().context("where is this program?")?;
    let folder = exe.parent().context("where is this program?")?;
    let places = [folder.join(PRELOAD), folder.join("../lib/rftrace").join(PRELOAD)];
    places.iter().find(|path| path.is_file()).cloned().with_context(|| {
        format!(
            "the library {PRELOAD} is not beside {}: install both (cargo install rftrace-tools), or name its path in \
             RFTRACE_PRELOAD",
            exe.display()
        )
    })
}

/// A signal by its name, with or without `SIG`, or its number. 0 for `none`.
pub(crate) fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper.clone() } else { format!("SIG{upper}") };
    if upper == "NONE" {
        return Ok(0);
    }
    let by_name = full.parse::<Signal>().ok().map(|signal| signal as i32);
    let signal = by_name.or_else(|| upper.parse().ok().filter(|number| (1..=64).contains(number)));
    match signal {
        None => Err("not a signal; such as USR1, or none".to_owned()),
        Some(9 | 19) => Err("no program can handle this signal".to_owned()),
        Some(32 | 33) => Err("the C library needs this signal".to_owned()),
        Some(signal) => Ok(signal),
    }
}

/// Runs the program and waits until it and all recorded processes have ended.
pub(crate) fn run(
    program: &Path,
    command: &[OsString],
    preload: &Path,
    variables: Vec<(&'static str, OsString)>,
) -> Result<Ended> {
    let mut child = Command::new(program);
    child.arg0(&command[0]).args(&command[1..]);
    let mut preloaded = preload.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    child.env("LD_PRELOAD", preloaded);
    let work = variables.iter().find(|(name, _)| *name == "RFTRACE_RECORD").map(|(_, path)| PathBuf::from(path));
    child.envs(variables);

    // From here on this process outlives the signals of the terminal: the program decides what they mean.
    let handled = [SIGINT, SIGQUIT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = SignalsInfo::<WithOrigin>::new(handled).context("cannot handle signals")?;
    let handle = signals.handle();
    let started = Instant::now();
    let mut child = child.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let pid = child.id();
    let forwarder = thread::spawn(move || {
        let target = Pid::from_raw(pid.cast_signed());
        for origin in &mut signals {
            // What the terminal sends the program gets too.
            if let (Some(_), Ok(signal)) = (origin.process, Signal::try_from(origin.signal)) {
                let _ = kill(target, signal);
            }
        }
    });
    let status = child.wait().with_context(|| format!("lost {}", program.display()))?;
    handle.close();
    let _ = forwarder.join();
    if let Some(work) = work {
        wait_for_others(&work);
    }
    Ok(Ended { pid, status, elapsed: started.elapsed(), usage: usage() })
}

impl Ended {
    /// The exit status for the shell.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// Whether a signal was ignored when this program was started, as by nohup.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// Waits for processes that outlive the program, such as daemons: they have something to save. A signal ends the wait.
fn wait_for_others(work: &Path) {
    const INTERVAL: Duration = Duration::from_millis(20);
    /// How long a child takes at most, from the fork until it tells of itself.
    const FORK: Duration = Duration::from_secs(1);

    let since = Instant::now();
    while is_forking(work) && since.elapsed() < FORK {
        thread::sleep(Duration::from_millis(1));
    }
    if living(work).is_empty() {
        return;
    }
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    let mut said = false;
    loop {
        let living = living(work);
        if living.is_empty() {
            return;
        }
        if !said && since.elapsed() > Duration::from_secs(1) {
            let pids: Vec<String> = living.iter().map(u32::to_string).collect();
            eprintln!("rftrace: waiting for {} (kill it, or press Ctrl-C to go on without)", pids.join(", "));
            said = true;
        }
        if signals.pending().next().is_some() {
            return;
        }
        thread::sleep(INTERVAL);
    }
}

/// Whether a fork was announced whose child has not told of itself. If the fork failed it never does.
fn is_forking(work: &Path) -> bool {
    fs::read_dir(work)
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("fork-")))
}

/// The recorded processes that have not ended.
fn living(work: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(work) else { return Vec::new() };
    let is_living = |name: OsString| {
        let name = name.into_string().ok()?;
        let (pid, start_time) = name.strip_prefix("process-")?.split_once('-')?;
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
        let behind = String::from_utf8_lossy(&stat[behind..]).into_owned();
        let mut fields = behind.split_ascii_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        (!is_zombie && fields.nth(18)? == start_time).then(|| pid.parse().ok())?
    };
    entries.flatten().filter_map(|entry| is_living(entry.file_name())).collect()
}

/// What the program and its children have used.
fn usage() -> Vec<String> {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Vec::new() };
    let time = |time: nix::sys::time::TimeVal| format!("{}.{:06}", time.tv_sec(), time.tv_usec());
    let pair = |name: &str, (a, b): (i64, i64), what: &str| format!("usageinfo:{name}={a} / {b} ({what})");
    vec![
        format!("usageinfo:systime={}", time(usage.system_time())),
        format!("usageinfo:usrtime={}", time(usage.user_time())),
        pair(
            "ctxsw",
            (usage.voluntary_context_switches(), usage.involuntary_context_switches()),
            "voluntary / involuntary",
        ),
        format!("usageinfo:maxrss={}", usage.max_rss()),
        pair("pagefault", (usage.major_page_faults(), usage.minor_page_faults()), "major / minor"),
        pair("iops", (usage.block_reads(), usage.block_writes()), "read / write"),
    ]
}
