//! What recorded processes are told of functions' values, and where they say which rules of the filter match anything.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A file in memory with what debug information tells of values.
#[derive(Debug)]
pub struct Types(File);

impl Types {
    /// Makes it, of [lines](rftrace_format::recording::TypesLine).
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn create(lines: &str) -> Result<Self> {
        let memory = memfd_create("rftrace-types", MFdFlags::MFD_CLOEXEC).context("no memory for types")?;
        let mut file = File::from(memory);
        file.write_all(lines.as_bytes()).context("no memory for types")?;
        Ok(Self(file))
    }

    /// Where other processes find it, as long as this one lives.
    pub fn path(&self) -> String {
        path(&self.0)
    }
}

/// A byte for each rule that all recorded processes share, behind one that says that any process has obeyed the filter.
#[derive(Debug)]
pub struct RuleEffects {
    memory: File,
    rules: Vec<String>,
}

impl RuleEffects {
    /// For these rules, in the order of [`Filter::optional_rules`](rftrace_frontend::Filter::optional_rules).
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn create(rules: Vec<String>) -> Result<Self> {
        let memory = memfd_create("rftrace-rules", MFdFlags::MFD_CLOEXEC).context("no memory for rules")?;
        let mut memory = File::from(memory);
        memory.write_all(&vec![0; rules.len() + 1]).context("no memory for rules")?;
        Ok(Self { memory, rules })
    }

    /// Where other processes find it, as long as this one lives.
    pub fn path(&self) -> String {
        path(&self.memory)
    }

    /// The rules that have matched nothing in any process; none if no process has obeyed them.
    ///
    /// # Errors
    ///
    /// The memory cannot be read.
    pub fn without_effect(&self) -> Result<Vec<&str>> {
        let mut bytes = vec![0; self.rules.len() + 1];
        self.memory.read_exact_at(&mut bytes, 0).context("cannot read which rules have matched")?;
        let Some((&1, matched)) = bytes.split_first() else { return Ok(Vec::new()) };
        Ok(self.rules.iter().zip(matched).filter(|&(_, &matched)| matched == 0).map(|(rule, _)| &**rule).collect())
    }
}

fn path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rules_of_several_processes() {
        let effects = RuleEffects::create(["a", "b", "c"].map(str::to_owned).into()).unwrap();
        assert!(effects.without_effect().unwrap().is_empty(), "nobody has looked");
        for matched in [&[0_u64, 1][..], &[0, 3], &[0]] {
            let file = File::options().write(true).open(effects.path()).unwrap();
            matched.iter().for_each(|&place| file.write_all_at(&[1], place).unwrap());
        }
        assert_eq!(effects.without_effect().unwrap(), ["b"]);
    }

    #[test]
    fn types_are_read_by_their_path() {
        let types = Types::create("10 0 1\n").unwrap();
        assert_eq!(fs::read_to_string(types.path()).unwrap(), "10 0 1\n");
    }
}
