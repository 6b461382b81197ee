//! A command in a real terminal, which `script` makes.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::tools;

/// The command in a terminal, in a shell that says afterwards how it ended and whether the terminal is as before.
#[derive(Debug)]
pub struct Terminal {
    /// Its parent, which ends it when that takes more than a minute.
    pub child: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    seen: String,
}

impl Terminal {
    /// Begins a command of 24 lines and 120 columns, whose number comes into a file. `None` if there is no `script`.
    #[must_use]
    pub fn new(command: &str, pid: &Path) -> Option<Self> {
        // The shell's process becomes the command, so that its number is known.
        let shell = format!(
            "stty rows 24 cols 120; before=$(stty -g); sh -c 'echo $$ >{pid}; exec {command}'; echo status=$?; \
             [ \"$before\" = \"$(stty -g)\" ] && echo as-before",
            pid = pid.display(),
        );
        // With no end to wait for, it is a failure after a minute.
        let mut command = Command::new("timeout");
        command
            .args(["60", "script", "--quiet", "--command", &shell, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if !tools::require(&["script", "timeout", "pkill"]) {
            return None;
        }
        let mut child = command.spawn().expect("it starts");
        let (keys, screen) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Some(Self { child, keys, screen, seen: String::new() })
    }

    /// Waits until a text is written to the screen, in which blanks are not written but skipped.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        while !self.seen.contains(text) {
            let count = self.screen.read(&mut bytes).expect("the terminal");
            assert!(count > 0, "{text} is missing in {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }

    /// Presses keys. Waits concern the output from now on.
    pub fn press(&mut self, keys: &str) {
        self.seen.clear();
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits for the end.
    #[track_caller]
    pub fn end(mut self, status: &str) {
        self.wait_for(&format!("status={status}\r\n"));
        assert!(self.seen.contains("\u{1b}[?1049l"), "the first screen is shown again: {:?}", self.seen);
        self.wait_for("as-before");
        drop(self.keys);
        self.child.wait().expect("it has ended");
    }
}
