//! Lines on stderr beside what a command writes. Nobody may be there to read them: then they are lost, and the command goes on. A
//! recorded program ends as it does by itself, whatever became of them.

/// Writes a line to stderr, at once: other processes may write there too. Most lines contain paths and texts of others.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let line = format!("{}\n", rftrace_format::text::Shown::lines(&format!($($arg)*)));
        let _ = std::io::stderr().write_all(line.as_bytes());
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
