//! The values of calls in saved parts: their lengths behind records, and the files with their specs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use rftrace_format::files::File as TraceFile;
use rftrace_format::items::read_payload;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::record::{Kind, Record};
use rftrace_format::store;
use rftrace_format::symbols::{Head, ModuleId, SourcePart, SymbolFileNames, ValueLines, ValuesOf};
use rftrace_format::values::MAX_PAYLOAD;
use rftrace_read::{Task, Trace};

/// A part of a trace with values.
#[derive(Debug)]
pub(crate) struct PartValues(Trace);

impl PartValues {
    /// Of the part in `dir`; `None` if it has no values.
    pub(crate) fn of(dir: &Path) -> Result<Option<Self>> {
        if !has_specs(dir)? {
            return Ok(None);
        }
        Trace::open(dir).map(|trace| Some(Self(trace))).with_context(|| format!("cannot read {}", dir.display()))
    }

    fn task(&self, tid: u32) -> Option<&Task> {
        self.0.tasks().iter().find(|task| task.tid() == tid)
    }

    /// The time of a task's last record.
    pub(crate) fn last_time(&self, tid: u32) -> Result<u64> {
        let Some(task) = self.task(tid) else { return Ok(0) };
        let last = self.0.records(task).last().transpose()?;
        Ok(last.map_or(0, |record| record.time_ns))
    }

    /// Reads the values behind a record of a task.
    pub(crate) fn read(&self, tid: u32, record: &Record, input: &mut impl Read) -> io::Result<Vec<u8>> {
        let mut payload = Vec::new();
        let task = self.task(tid);
        let is_result = record.kind == Kind::Exit;
        let specs = task.and_then(|task| self.0.value_specs(task, record.time_ns, record.addr, is_result));
        let Some(specs) = specs else { return Err(io::ErrorKind::InvalidData.into()) };
        while read_payload(specs, &payload).is_none() {
            let mut unit = [0; 8];
            input.read_exact(&mut unit)?;
            payload.extend(unit);
            if payload.len() > MAX_PAYLOAD {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(payload)
    }
}

/// True if a part has files that describe values.
fn has_specs(dir: &Path) -> Result<bool> {
    let mut entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    Ok(entries.any(|entry| {
        entry.is_ok_and(|entry| TraceFile::of(&entry.file_name().to_string_lossy()) == Some(TraceFile::SourceLines))
    }))
}

/// The files about values: one for each module, with the facts of all parts.
#[derive(Debug, Default)]
pub(crate) struct SpecFiles(BTreeMap<String, (Head, BTreeMap<u64, ValuesOf>)>);

impl SpecFiles {
    /// Takes those of a part.
    pub(crate) fn add(&mut self, dir: &Path, names: &mut SymbolFileNames) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let path = entry.with_context(|| format!("cannot read {}", dir.display()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if TraceFile::of(&name) != Some(TraceFile::SourceLines) {
                continue;
            }
            let text = opener::read(&path, MOST_TEXT).with_context(|| format!("cannot read {}", path.display()))?;
            let head = Head::parse(&text);
            let module =
                ModuleId { path: head.path.as_deref().unwrap_or_default(), build_id: head.build_id.as_deref() };
            let Some(name) = names.name(module) else { continue };
            let (_, functions) = self.0.entry(name).or_insert_with(|| (head, BTreeMap::new()));
            add_functions(functions, &String::from_utf8_lossy(&text));
        }
        Ok(())
    }

    /// Writes them beside the symbol files.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        for (name, (head, functions)) in &self.0 {
            let lines = functions.iter().map(|(&addr, function)| ValueLines { addr, function }.to_string());
            let text = head.to_string() + &lines.collect::<String>();
            let path = dir.join(name).with_extension("dbg");
            store::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Takes the functions of a file. The first facts on one count.
fn add_functions(functions: &mut BTreeMap<u64, ValuesOf>, text: &str) {
    let mut function = None;
    for line in text.lines() {
        match (SourcePart::parse(line), function) {
            (Some(SourcePart::Function { addr }), _) => {
                let name = line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned();
                functions.entry(addr).or_insert(ValuesOf { name, arguments: None, result: None });
                function = Some(addr);
            }
            (Some(SourcePart::Arguments(specs)), Some(addr)) => {
                if let Some(function) = functions.get_mut(&addr) {
                    function.arguments.get_or_insert_with(|| specs.to_owned());
                }
            }
            (Some(SourcePart::Result(spec)), Some(addr)) => {
                if let Some(function) = functions.get_mut(&addr) {
                    function.result.get_or_insert_with(|| spec.to_owned());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_tell_of_one_module_together() {
        let mut functions = BTreeMap::new();
        add_functions(&mut functions, "# path name: /a\nF: 10 f(int, int)\nA: @arg1/i32\nF: 20 g\nR: @retval/s\n");
        add_functions(&mut functions, "# path name: /a\nF: 10 f(int, int)\nA: @arg1/i64\nR: @retval/d64\n");
        let lines = functions.iter().map(|(&addr, function)| ValueLines { addr, function }.to_string());
        let expected = "F: 10 f(int, int)\nA: @arg1/i32\nR: @retval/d64\nF: 20 g\nR: @retval/s\n";
        assert_eq!(lines.collect::<String>(), expected);
    }
}
