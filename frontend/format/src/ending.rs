//! The end of a process in words.
//!
//! Not here: the file that stores it (`info`), and the calls that were open then (`events`).

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

/// From number 1 on, as on x86-64, aarch64 and riscv64.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Returns the name of a signal (`SIGSEGV`), or its number.
pub fn signal_name(signal: i32) -> String {
    let name = usize::try_from(signal).ok().and_then(|signal| SIGNALS.get(signal.checked_sub(1)?));
    name.map_or_else(|| format!("signal {signal}"), |name| "SIG".to_owned() + name)
}

/// Returns a status of `wait` in words: `killed by SIGSEGV`, `exit status 3`.
pub fn in_words(status: i32) -> String {
    match status & 0x7f {
        0 => format!("exit status {}", status >> 8 & 0xff),
        signal => format!("killed by {}", signal_name(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_other_ends_numbers() {
        let ends = [
            (9, "killed by SIGKILL"),
            (139, "killed by SIGSEGV"),
            (31, "killed by SIGSYS"),
            (34, "killed by signal 34"),
        ];
        for (status, text) in ends.into_iter().chain([(0, "exit status 0"), (3 << 8, "exit status 3")]) {
            assert_eq!(in_words(status), text);
        }
    }
}
