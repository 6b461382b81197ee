//! Lines on stderr beside what a command writes. Nobody may be there to read them: then they are lost, and the command goes on. A
//! recorded program ends as it does by itself, whatever became of them.

/// Writes a line to stderr. Paths, and what others say, are in most of them.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", rftrace_format::text::Shown::lines(&format!($($arg)*)));
    }};
}

/// Writes a line to stderr, with its colours where that is a terminal.
#[cfg(all(feature = "full", target_os = "linux"))]
macro_rules! say_styled {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(anstream::stderr(), $($arg)*);
    }};
}
