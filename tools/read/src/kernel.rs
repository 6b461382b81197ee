//! `kernel-cpu<N>.dat`, `kernel_header` and `kallsyms`: the functions of tasks in the kernel.
//!
//! A file holds pages of ftrace's ring buffer for one processor: entries and exits of functions, and other events.
//! uftrace stores them in the kernel's form; `rftrace record` does the same.

use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::path::Path;

use rftrace_format::files::{File as TraceFile, KERNEL_HEADER, KERNEL_SYMBOLS};
use rftrace_format::record::{ADDRESS_MASK, Kind, RECORD_BYTES, Record};
use rftrace_kernel::header::{self, Header, Told, What};
use rftrace_kernel::page::Page;

use crate::error::{Error, Result};
use crate::files;
use crate::lines::Lines;
use crate::symbols::{Symbol, SymbolTable};
use crate::warning::{Warning, Warnings};

/// The maximum number of records: a GiB.
const MAX_RECORDS: usize = 1 << 26;

/// The lowest address of the kernel, in the form of records.
pub const FIRST_ADDRESS: u64 = 1 << 47;

/// The kernel records of all tasks, 16 bytes each.
#[derive(Debug, Default)]
pub(crate) struct KernelRecords {
    /// By task, in order of time.
    of_task: HashMap<u32, Vec<[u8; RECORD_BYTES]>>,
    n_records: usize,
}

impl KernelRecords {
    /// Reads all files in `dir`. Returns the names of events too.
    pub(crate) fn read(dir: &Path, warnings: &mut Warnings) -> Result<(Self, Vec<(u64, String)>)> {
        let path = dir.join(KERNEL_HEADER);
        let Some(bytes) = files::if_present(files::read(&path, header::MAX_BYTES))? else {
            return Ok((Self::default(), Vec::new()));
        };
        let Some(header) = Header::parse(&bytes) else {
            return Err(Error::malformed(
                &path,
                0,
                "no description of the kernel's records; remove the file to see the trace without them",
            ));
        };
        let mut records = Self::default();
        for path in files::of_processors(dir, |kind| match kind {
            TraceFile::Kernel(processor) => Some(processor),
            _ => None,
        })? {
            records.add(&path, &header, warnings)?;
        }
        // A task that moved has its records in several files.
        records.of_task.values_mut().for_each(|task| task.sort_by_key(time_ns));
        let names = header.events().map(|(id, name)| (id.into(), format!("linux:{name}"))).collect();
        Ok((records, names))
    }

    /// The records of a task.
    pub(crate) fn of_task(&self, tid: u32) -> &[[u8; RECORD_BYTES]] {
        self.of_task.get(&tid).map(Vec::as_slice).unwrap_or_default()
    }

    fn add(&mut self, path: &Path, header: &Header, warnings: &mut Warnings) -> Result<()> {
        let mut file = BufReader::new(files::open(path)?);
        let page_bytes = header.layout().page_bytes;
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = file.by_ref().take(page_bytes as u64).read_to_end(&mut bytes);
            if read.map_err(|source| Error::Io { path: path.to_owned(), source })? == 0 {
                return Ok(());
            }
            let Some(mut page) = Page::new(&bytes, header.layout()) else {
                warnings.add(Warning::CorruptStretch, 1);
                continue;
            };
            warnings.add(Warning::LostKernelRecord, page.lost().map_or(0, |lost| lost.max(1)));
            for event in page.by_ref() {
                let Some(told) = header.read(event.data) else {
                    warnings.add(Warning::CorruptStretch, 1);
                    continue;
                };
                self.of_task.entry(told.tid).or_default().push(record(told, event.time));
                self.n_records += 1;
                if self.n_records > MAX_RECORDS {
                    let reason = format!(
                        "more than {MAX_RECORDS} records of the kernel, the most that rftrace takes into memory; remove the files \
                         `kernel-cpu*.dat` to see the trace without them"
                    );
                    return Err(Error::malformed(path, 0, reason));
                }
            }
            warnings.add(Warning::CorruptStretch, u64::from(page.is_wrong()));
        }
    }
}

/// The functions of a kernel.
#[derive(Debug, Default)]
pub(crate) struct KernelSymbols(SymbolTable);

impl KernelSymbols {
    /// Reads the table in `dir`, if there is one.
    pub(crate) fn read(dir: &Path, warnings: &mut Warnings) -> Result<Self> {
        let lines = files::if_present(Lines::open(&dir.join(KERNEL_SYMBOLS)))?;
        let table = lines.map(|lines| SymbolTable::read(lines, 0, crate::demangle::Demangle::No, warnings));
        Ok(Self(table.transpose()?.unwrap_or_default()))
    }

    /// The function around an address of a record.
    pub(crate) fn find(&self, addr: u64) -> Option<&Symbol> {
        if addr < FIRST_ADDRESS { None } else { self.0.find(addr | !ADDRESS_MASK) }
    }
}

fn record(Told { id, what, .. }: Told, time_ns: u64) -> [u8; RECORD_BYTES] {
    let (kind, addr) = match what {
        What::Entry { func } => (Kind::Entry, func & ADDRESS_MASK),
        What::Exit { func } => (Kind::Exit, func & ADDRESS_MASK),
        _ => (Kind::Event, id.into()),
    };
    Record { time_ns, kind, has_payload: false, payload_at: 0, depth: 0, addr }.encode()
}

fn time_ns(record: &[u8; RECORD_BYTES]) -> u64 {
    Record::decode(record).map_or(0, |record| record.time_ns)
}

/// A task's records of the kernel, in order among those of its program.
///
/// The program does nothing while it is in the kernel: functions open there have ended when it continues. So entries
/// and exits are balanced between two records of the program, even from damaged files.
#[derive(Debug, Clone)]
pub(crate) struct InKernel<'t> {
    left: &'t [[u8; RECORD_BYTES]],
    /// The open functions of the kernel.
    open: Vec<u64>,
    /// The number of open functions of the program; `None` behind lost records.
    n_open: Option<u16>,
}

impl<'t> InKernel<'t> {
    /// The maximum number of open functions of the kernel.
    const MAX_OPEN: usize = 1024;

    pub(crate) fn new(left: &'t [[u8; RECORD_BYTES]]) -> Self {
        Self { left, open: Vec::new(), n_open: None }
    }

    /// True if there is nothing, and will be nothing.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty() && self.open.is_empty()
    }

    /// Drops records before the first record of the program.
    pub(crate) fn skip_before(&mut self, first_ns: u64) {
        let n_before = self.left.partition_point(|record| time_ns(record) < first_ns);
        self.left = self.left.get(n_before..).unwrap_or_default();
    }

    /// Drops the rest.
    pub(crate) fn stop(&mut self) {
        self.left = &[];
    }

    /// The time of the next record.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.left.first().map(time_ns)
    }

    /// Returns the next record before `before_ns`, the time of the program's next record. At that very time, an end in
    /// the kernel is before, and a beginning is after.
    pub(crate) fn next(&mut self, before_ns: u64) -> Option<Record> {
        while let Some((first, rest)) = self.left.split_first() {
            let is_after = |ns: u64| ns > before_ns || (ns == before_ns && self.open.is_empty());
            if is_after(time_ns(first)) {
                return None;
            }
            let Some(record) = Record::decode(first).filter(|_| self.n_open.is_some()) else {
                self.left = rest;
                continue;
            };
            match record.kind {
                Kind::Exit if self.open.contains(&record.addr) => {
                    // Those that it has called end before it.
                    if self.open.last() == Some(&record.addr) {
                        self.left = rest;
                    }
                    return self.end_one(record.time_ns);
                }
                Kind::Exit => self.left = rest,
                Kind::Entry if self.open.len() >= Self::MAX_OPEN => self.left = rest,
                Kind::Entry => {
                    self.left = rest;
                    let depth = self.depth();
                    self.open.push(record.addr);
                    return Some(Record { depth, ..record });
                }
                Kind::Event | Kind::Lost => {
                    self.left = rest;
                    return Some(Record { depth: self.depth(), ..record });
                }
            }
        }
        None
    }

    /// Ends the innermost open function at this time.
    pub(crate) fn end_one(&mut self, time_ns: u64) -> Option<Record> {
        let addr = self.open.pop()?;
        Some(Record { time_ns, kind: Kind::Exit, has_payload: false, payload_at: 0, depth: self.depth(), addr })
    }

    /// The program does something.
    pub(crate) fn pass(&mut self, record: &Record) {
        self.n_open = match record.kind {
            Kind::Entry => Some(record.depth.saturating_add(1)),
            Kind::Exit => Some(record.depth),
            Kind::Lost => None,
            Kind::Event => self.n_open,
        };
    }

    fn depth(&self) -> u16 {
        let n_open = self.n_open.unwrap_or(0);
        n_open.saturating_add(u16::try_from(self.open.len()).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, kind: Kind, addr: u64) -> [u8; RECORD_BYTES] {
        Record { time_ns, kind, has_payload: false, payload_at: 0, depth: 0, addr }.encode()
    }

    fn user(kind: Kind, depth: u16) -> Record {
        Record { time_ns: 0, kind, has_payload: false, payload_at: 0, depth, addr: 1 }
    }

    /// The records until a time: time, kind, address, depth.
    fn until(kernel: &mut InKernel<'_>, before_ns: u64) -> Vec<(u64, Kind, u64, u16)> {
        std::iter::from_fn(|| kernel.next(before_ns))
            .map(|next| (next.time_ns, next.kind, next.addr, next.depth))
            .collect()
    }

    #[test]
    fn what_is_in_the_kernel_lies_between_two_records() {
        let records = [
            record(10, Kind::Exit, 5),
            record(20, Kind::Entry, 6),
            record(21, Kind::Entry, 7),
            record(22, Kind::Event, 300),
            record(23, Kind::Entry, 8),
            record(25, Kind::Exit, 6),
            record(25, Kind::Entry, 9),
            record(40, Kind::Exit, 9),
        ];
        let mut kernel = InKernel::new(&records);
        assert_eq!(until(&mut kernel, 5), []);
        kernel.pass(&user(Kind::Entry, 2));
        let expected = [
            (20, Kind::Entry, 6, 3),
            (21, Kind::Entry, 7, 4),
            (22, Kind::Event, 300, 5),
            (23, Kind::Entry, 8, 5),
            (25, Kind::Exit, 8, 5),
            (25, Kind::Exit, 7, 4),
            (25, Kind::Exit, 6, 3),
        ];
        assert_eq!(until(&mut kernel, 25), expected);
        kernel.pass(&user(Kind::Exit, 2));
        assert_eq!(until(&mut kernel, 30), [(25, Kind::Entry, 9, 2)]);
        assert_eq!(kernel.end_one(30).map(|end| (end.time_ns, end.addr, end.depth)), Some((30, 9, 2)));
        assert!(kernel.end_one(30).is_none());
        // Where records were lost nobody knows how many are open.
        kernel.pass(&user(Kind::Lost, 0));
        assert_eq!(until(&mut kernel, 50), []);
        assert!(kernel.is_over());
    }
}
