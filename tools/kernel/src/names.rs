//! The kernel's functions by address, and names of system calls.

use std::fmt::Write as _;

/// Where calls of the system have addresses of their own: no kernel has anything there. Number n has the address of n pieces more.
const SYSCALLS_AT: u64 = 0xffff_ffff_ffe0_0000;
const SYSCALL_BYTES: u64 = 16;
/// No system has more.
const MAX_SYSCALLS: u64 = 0x1_0000;

/// The most functions of a kernel, and the longest name in bytes.
const MAX_FUNCTIONS: usize = 1 << 22;
const MAX_NAME_BYTES: usize = 4096;

/// Returns the address that stands for a system call; `None` for an impossible number.
pub fn syscall_address(number: u64) -> Option<u64> {
    (number < MAX_SYSCALLS).then(|| SYSCALLS_AT + number * SYSCALL_BYTES)
}

/// Returns the name of the system call with this number: `linux:sys_write`.
pub fn syscall_name(number: u64) -> String {
    known_name(number).map_or_else(|| format!("linux:sys_{number}"), |name| format!("linux:sys_{name}"))
}

#[cfg(target_os = "linux")]
fn known_name(number: u64) -> Option<&'static str> {
    usize::try_from(number).ok().and_then(syscalls::Sysno::new).map(|call| call.name())
}

/// Calls recorded here are not Linux's.
#[cfg(not(target_os = "linux"))]
fn known_name(_: u64) -> Option<&'static str> {
    None
}

/// True if this call never returns.
pub(crate) fn never_returns(number: u64) -> bool {
    matches!(known_name(number), Some("exit" | "exit_group"))
}

/// The functions of a kernel, by address.
#[derive(Debug, Default)]
pub struct Functions {
    sorted: Vec<(u64, Box<str>)>,
}

impl Functions {
    /// Parses `/proc/kallsyms`. The result is empty if the kernel hides the addresses.
    pub fn parse(text: &[u8]) -> Self {
        let function = |line: &[u8]| {
            let line = str::from_utf8(line).ok()?;
            let mut words = line.split_ascii_whitespace();
            let addr = u64::from_str_radix(words.next()?, 16).ok().filter(|&addr| addr != 0)?;
            words.next().filter(|kind| matches!(*kind, "t" | "T" | "w" | "W"))?;
            let name = words.next().filter(|name| name.len() <= MAX_NAME_BYTES)?;
            Some((addr, name.into()))
        };
        let lines = text.split(|&byte| byte == b'\n');
        let mut sorted: Vec<(u64, Box<str>)> = lines.filter_map(function).take(MAX_FUNCTIONS).collect();
        sorted.sort_by_key(|&(addr, _)| addr);
        sorted.dedup_by_key(|&mut (addr, _)| addr);
        Self { sorted }
    }

    /// Returns true if no function is known.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Returns the beginning of the function around an address; the address itself if the function is unknown.
    pub fn start(&self, addr: u64) -> u64 {
        self.find(addr).map_or(addr, |place| self.sorted[place].0)
    }

    fn find(&self, addr: u64) -> Option<usize> {
        self.sorted.partition_point(|&(start, _)| start <= addr).checked_sub(1)
    }

    /// Returns the file `kallsyms` with the names of functions and system calls at these addresses, which are in order.
    pub fn table(&self, addresses: impl IntoIterator<Item = u64>) -> String {
        let mut text = String::new();
        let mut line = |addr: u64, kind: char, name: &str| {
            let _ = writeln!(text, "{addr:016x} {kind} {name}");
        };
        let mut last = 0;
        for addr in addresses {
            if let Some(offset) = addr.checked_sub(SYSCALLS_AT) {
                line(addr, 'T', &syscall_name(offset / SYSCALL_BYTES));
                line(addr + SYSCALL_BYTES, '?', END);
                continue;
            }
            let Some(place) = self.find(addr) else { continue };
            let (start, name) = &self.sorted[place];
            if *start == last {
                continue;
            }
            last = *start;
            line(*start, 'T', name);
            line(self.sorted.get(place + 1).map_or(start + 1, |next| next.0), '?', END);
        }
        text
    }
}

/// The name that uftrace has for the end of a function of unknown size.
const END: &str = "__func_end";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_system_calls() {
        let text = b"ffffffff81000000 T _text\nffffffff81000100 t vfs_write\nffffffff81000100 T alias\nffffffff81000200 D data\n\
                     ffffffffc0000000 t ext4_write\t[ext4]\nnonsense\n0000000000000000 T hidden\n";
        let functions = Functions::parse(text);
        assert_eq!(functions.start(0xffff_ffff_8100_0150), 0xffff_ffff_8100_0100);
        assert_eq!(functions.start(5), 5);
        let write = syscall_address(1).unwrap();
        let table = functions.table([0xffff_ffff_8100_0100, 0xffff_ffff_8100_0104, write]);
        assert_eq!(
            table,
            "ffffffff81000100 T vfs_write\nffffffffc0000000 ? __func_end\n\
             ffffffffffe00010 T linux:sys_write\nffffffffffe00020 ? __func_end\n"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn names_of_calls() {
        use syscalls::Sysno;

        // Each processor has its own numbers.
        let numbers = |calls: [Sysno; 3]| calls.map(|call| call.id() as u64);
        let named = numbers([Sysno::read, Sysno::write, Sysno::execve]).map(syscall_name);
        assert_eq!(named, ["linux:sys_read", "linux:sys_write", "linux:sys_execve"]);
        assert_eq!(syscall_name(9999), "linux:sys_9999");
        let ends = numbers([Sysno::exit, Sysno::exit_group, Sysno::write]).map(never_returns);
        assert_eq!(ends, [true, true, false]);
        assert_eq!(syscall_address(u64::MAX), None);
    }
}
