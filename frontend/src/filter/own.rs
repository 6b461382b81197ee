//! The tracer's own functions, hidden in traces.
//!
//! This crate is compiled with the program's flags, so its functions call `mcount` too. Code for calls during recording
//! is inlined and switches recording off first; this is for the rest, such as a guard's drop glue.

#[cfg(target_os = "linux")]
use crate::elf::table::{Symbol, SymbolTable};
use crate::host::program::Program;

/// Beginnings of the demangled names of the functions of this crate, and of those of the format, of control and of patterns.
#[cfg(target_os = "linux")]
const PREFIXES: [&str; 16] = [
    "rftrace_frontend::",
    "<rftrace_frontend::",
    "core::ptr::drop_in_place::<rftrace_frontend::",
    "core::ptr::drop_glue::<rftrace_frontend::",
    "rftrace_format::",
    "<rftrace_format::",
    "core::ptr::drop_in_place::<rftrace_format::",
    "core::ptr::drop_glue::<rftrace_format::",
    "rftrace_control::",
    "<rftrace_control::",
    "core::ptr::drop_in_place::<rftrace_control::",
    "core::ptr::drop_glue::<rftrace_control::",
    "rftrace_pattern::",
    "<rftrace_pattern::",
    "core::ptr::drop_in_place::<rftrace_pattern::",
    "core::ptr::drop_glue::<rftrace_pattern::",
];

/// The C functions of `rftrace-frontend-ffi`.
#[cfg(target_os = "linux")]
const C_FUNCTIONS: [&str; 9] = [
    "rftrace_init",
    "rftrace_init_stream",
    "rftrace_enable",
    "rftrace_disable",
    "rftrace_dump_full_uftrace",
    "rftrace_dump_trace",
    "rftrace_last_error",
    "rftrace_set_filter",
    "rftrace_functions",
];

/// The address ranges of this crate's functions in the running program, ascending.
#[cfg(target_os = "linux")]
pub(crate) fn functions(program: &Program) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for (module, table) in &program.modules {
        let Some(table) = table else { continue };
        for symbol in table.symbols() {
            if is_own(table, symbol) {
                let start = module.start + symbol.address;
                found.push((start, start + symbol.size));
            }
        }
    }
    found.sort_unstable();
    found
}

/// Returns true for a function of this crate.
#[cfg(target_os = "linux")]
fn is_own(table: &SymbolTable, symbol: &Symbol) -> bool {
    // Demangling every name of a large program takes long; the crate's name stands in its mangled names as is.
    table.raw_name(symbol).windows(7).any(|part| part == b"rftrace") && is_own_name(&table.name(symbol))
}

/// Returns true for the name of a function of this crate.
#[cfg(target_os = "linux")]
pub(crate) fn is_own_name(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || C_FUNCTIONS.contains(&name)
}

/// The image's symbols are not at hand in the program itself.
#[cfg(not(target_os = "linux"))]
pub(crate) fn functions(_program: &Program) -> Vec<(u64, u64)> {
    Vec::new()
}

/// Returns true if `address` lies in one of the ascending `ranges`.
pub(crate) fn contains(ranges: &[(u64, u64)], address: u64) -> bool {
    // Most addresses lie outside of all.
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
        return false;
    };
    if address < first.0 || address >= last.1 {
        return false;
    }
    let place = ranges.partition_point(|range| range.0 <= address);
    place.checked_sub(1).and_then(|place| ranges.get(place)).is_some_and(|range| address < range.1)
}

#[cfg(test)]
mod tests {
    use super::contains;

    #[test]
    fn ranges_are_half_open() {
        let ranges = [(10, 20), (30, 40)];
        let inside: Vec<u64> = (0..50).filter(|&address| contains(&ranges, address)).collect();
        assert_eq!(inside, (10..20).chain(30..40).collect::<Vec<_>>());
        assert!(!contains(&[], 1));
    }
}
