//! The names of the libraries in a process: they are files in its memory.

use nix::libc::pid_t;

/// The tracer.
pub(crate) const TRACER: &str = "rftrace-attached";
/// The library for resources.
pub(crate) const RESOURCES: &str = "rftrace-attached-resources";

/// The tracer without a library.
pub(crate) const OUTSIDE: &str = "rftrace-outside";

/// The file of the branches' targets, and of the data on them.
pub(crate) const STUBS: &str = "rftrace-stubs";

/// The file of a bank.
pub(crate) const BANK: &str = "rftrace-banks";

/// True if a path in the maps is the tracer's.
pub(crate) fn is_tracer(path: &str) -> bool {
    is_mapped_from(path, TRACER)
}

/// The same for the library for resources.
pub(crate) fn is_for_resources(path: &str) -> bool {
    is_mapped_from(path, RESOURCES)
}

/// The same of the tracer without library.
pub(crate) fn is_outside(path: &str) -> bool {
    is_mapped_from(path, OUTSIDE)
}

/// The same for branches' targets.
pub(crate) fn is_stubs(path: &str) -> bool {
    is_mapped_from(path, STUBS)
}

/// The same of a bank.
pub(crate) fn is_bank(path: &str) -> bool {
    is_mapped_from(path, BANK)
}

/// The same of a file in memory with such a name.
pub(crate) fn is_mapped_from(path: &str, name: &str) -> bool {
    let file = path.strip_prefix("/memfd:").and_then(|path| path.strip_suffix(" (deleted)"));
    let rest = file.and_then(|file| file.strip_prefix(name));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The whole name of such a file in a process: if a recorder is killed, the next one knows it by this name among the
/// process's open files.
pub(crate) fn of_process(name: &str, process: pid_t) -> String {
    format!("{name}.{process}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        assert!(
            is_tracer("/memfd:rftrace-attached (deleted)") && !is_tracer("/memfd:rftrace-attached-resources (deleted)")
        );
        assert!(is_tracer(&format!("/memfd:{} (deleted)", of_process(TRACER, 7))));
        assert!(
            is_for_resources("/memfd:rftrace-attached-resources (deleted)") && !is_for_resources("/usr/lib/libc.so.6")
        );
    }
}
