//! The conversion of a kernel's recording to files of a trace directory.
//!
//! The events of all processors are read in order of time, as a task's calls may be spread over several. Each result is
//! written to the file of the processor on which the outermost call of its task began. One page of each file is in
//! memory.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::vec;

use crate::header::{Header, Told, What, call_record};
use crate::names::{Functions, never_returns, syscall_address};
use crate::nest::{Nesting, Step};
use crate::page::{Page, PageWriter};

/// The result of a conversion.
#[derive(Debug)]
pub struct Converted {
    /// The header of the files.
    pub header: Header,
    /// The addresses in them.
    pub addresses: BTreeSet<u64>,
    /// The number of calls of functions and of the system.
    pub n_calls: u64,
    /// The number of other events.
    pub n_events: u64,
    /// The number of events that the kernel reports as lost. A loss of unknown size counts as one.
    pub n_lost: u64,
    /// The number of pages that could not be read to their end.
    pub n_wrong_pages: u64,
}

/// Converts records: for each processor, the kernel's data and an output. `nanos` converts a time of the kernel to one
/// of the trace; times come in order.
///
/// # Errors
///
/// A file cannot be read or written, or `header` has no events.
pub fn convert<R: Read, W: Write>(
    processors: Vec<(R, W)>,
    header: &Header,
    functions: &Functions,
    nanos: impl Fn(u64) -> u64,
) -> io::Result<Converted> {
    let converted = header
        .converted()
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the trace has no formats of events"))?;
    let mut to = Tasks {
        header,
        functions,
        tasks: HashMap::new(),
        steps: Vec::new(),
        done: Converted {
            header: converted,
            addresses: BTreeSet::new(),
            n_calls: 0,
            n_events: 0,
            n_lost: 0,
            n_wrong_pages: 0,
        },
    };
    let (mut sources, mut outs) = (Vec::new(), Vec::new());
    let mut next = BinaryHeap::new();
    for (idx, (file, out)) in processors.into_iter().enumerate() {
        let mut source = Source { file, header, events: Vec::new().into_iter(), lost: None, n_wrong_pages: 0 };
        let event = source.next()?;
        next.extend(event.map(|event| Reverse((event.time, idx, event))));
        sources.push(source);
        outs.push(PageWriter::new(out));
    }
    let mut last = 0;
    while let Some(Reverse((time, idx, event))) = next.pop() {
        last = nanos(time).max(last);
        if let Some(lost) = event.lost_before {
            to.lose(idx, last, lost, &mut outs)?;
        }
        to.apply(idx, last, &event.record, &mut outs)?;
        next.extend(sources[idx].next()?.map(|event| Reverse((event.time, idx, event))));
    }
    for idx in 0..outs.len() {
        to.end(idx, last, &mut outs)?;
    }
    for out in outs {
        out.finish()?;
    }
    to.done.n_wrong_pages = sources.iter().map(|source| source.n_wrong_pages).sum();
    Ok(to.done)
}

/// A record of a processor.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    time: u64,
    /// Others before it are lost.
    lost_before: Option<u64>,
    record: Vec<u8>,
}

/// The records of a processor.
struct Source<'h, R> {
    file: R,
    header: &'h Header,
    events: vec::IntoIter<Pending>,
    /// The number of events lost before the next one.
    lost: Option<u64>,
    n_wrong_pages: u64,
}

impl<R: Read> Source<'_, R> {
    fn next(&mut self) -> io::Result<Option<Pending>> {
        loop {
            if let Some(event) = self.events.next() {
                return Ok(Some(event));
            }
            let layout = self.header.layout();
            let mut bytes = Vec::new();
            self.file.by_ref().take(layout.page_bytes as u64).read_to_end(&mut bytes)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let Some(mut page) = Page::new(&bytes, layout) else {
                self.n_wrong_pages += 1;
                continue;
            };
            if let Some(lost) = page.lost() {
                self.lost = Some(self.lost.unwrap_or(0).saturating_add(lost.max(1)));
            }
            let pending = |event: crate::page::Event<'_>| Pending {
                time: event.time,
                lost_before: self.lost.take(),
                record: event.data.to_vec(),
            };
            let events: Vec<Pending> = page.by_ref().map(pending).collect();
            self.n_wrong_pages += u64::from(page.is_wrong());
            self.events = events.into_iter();
        }
    }
}

/// A task.
#[derive(Default)]
struct Task {
    /// The processor that it was on last.
    processor: usize,
    /// The one whose file has what is open: uftrace wants entry and exit of a call in one file.
    home: usize,
    nesting: Nesting,
}

/// The tasks, and what is open in each.
struct Tasks<'a> {
    header: &'a Header,
    functions: &'a Functions,
    tasks: HashMap<u32, Task>,
    steps: Vec<Step>,
    done: Converted,
}

impl Tasks<'_> {
    fn apply<W: Write>(&mut self, idx: usize, time: u64, record: &[u8], outs: &mut [PageWriter<W>]) -> io::Result<()> {
        let Some(Told { tid, what, .. }) = self.header.read(record) else { return Ok(()) };
        let task = self.tasks.entry(tid).or_default();
        task.processor = idx;
        if task.nesting.is_empty() {
            task.home = idx;
        }
        let (home, nesting) = (task.home, &mut task.nesting);
        let steps = &mut self.steps;
        let start = |addr| self.functions.start(addr);
        match what {
            What::Entry { func } => nesting.enter(start(func), steps),
            What::Exit { func } => nesting.exit(start(func), steps),
            What::Function { ip, caller_ip } => nesting.call(start(ip), start(caller_ip), steps),
            What::Syscall { number } => {
                if let Some(addr) = syscall_address(number) {
                    nesting.syscall(addr, never_returns(number), steps);
                }
            }
            What::SyscallEnd { number } => {
                if let Some(addr) = syscall_address(number) {
                    nesting.syscall_end(addr, steps);
                }
            }
            What::Event => {
                self.done.n_events += 1;
                outs[home].event(time, record)?;
            }
        }
        self.write(tid, time, &mut outs[home])
    }

    /// Ends the calls open on a processor that has lost events: they ended somewhere there.
    fn lose<W: Write>(&mut self, idx: usize, time: u64, count: u64, outs: &mut [PageWriter<W>]) -> io::Result<()> {
        self.end(idx, time, outs)?;
        self.done.n_lost = self.done.n_lost.saturating_add(count);
        outs[idx].lost(count)
    }

    /// Ends what is open in the tasks that were on a processor last.
    fn end<W: Write>(&mut self, idx: usize, time: u64, outs: &mut [PageWriter<W>]) -> io::Result<()> {
        let on_it = self.tasks.iter().filter(|(_, task)| task.processor == idx && !task.nesting.is_empty());
        let mut tids: Vec<u32> = on_it.map(|(&tid, _)| tid).collect();
        tids.sort_unstable();
        for tid in tids {
            let Some(task) = self.tasks.get_mut(&tid) else { continue };
            task.nesting.end_all(&mut self.steps);
            let home = task.home;
            self.write(tid, time, &mut outs[home])?;
        }
        Ok(())
    }

    fn write<W: Write>(&mut self, tid: u32, time: u64, out: &mut PageWriter<W>) -> io::Result<()> {
        for Step { is_entry, addr, depth } in self.steps.drain(..) {
            if is_entry {
                self.done.n_calls += 1;
                self.done.addresses.insert(addr);
            }
            out.event(time, &call_record(is_entry, tid, addr, depth))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
                          \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n";
    const PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
                        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
                        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

    fn header() -> Header {
        let format = |id: u16, fields: &[&str]| {
            let field = |(place, name): (usize, &&str)| {
                format!("\tfield:unsigned long {name};\toffset:{};\tsize:8;\tsigned:0;\n", 8 + 8 * place)
            };
            let fields: String = fields.iter().enumerate().map(field).collect();
            format!("name: event{id}\nID: {id}\nformat:\n{COMMON}{fields}\nprint fmt: \"\"\n")
        };
        let formats = [
            ("raw_syscalls/sys_enter", format(1, &["id"])),
            ("raw_syscalls/sys_exit", format(2, &["id"])),
            ("ftrace/function", format(3, &["ip", "parent_ip"])),
            ("irq/irq_handler_entry", format(4, &[])),
        ];
        Header::new(PAGE, formats).expect("a header")
    }

    fn record(id: u16, tid: u32, values: &[u64]) -> Vec<u8> {
        let head = [&id.to_le_bytes()[..], &[0, 0], &tid.to_le_bytes()].concat();
        head.into_iter().chain(values.iter().flat_map(|value| value.to_le_bytes())).collect()
    }

    fn file(records: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut out = PageWriter::new(Vec::new());
        records.iter().for_each(|(time, record)| out.event(*time, record).expect("memory"));
        out.finish().expect("memory")
    }

    /// The contents made of the files of processors: processor, time, task and meaning; and the outcome.
    fn converted(files: &[Vec<u8>]) -> (Vec<(usize, u64, u32, What)>, Converted) {
        let mut outs = vec![Vec::new(); files.len()];
        let processors = files.iter().map(Vec::as_slice).zip(&mut outs).collect();
        let done = convert(processors, &header(), &Functions::default(), |time| time * 10).expect("memory");
        let mut found = Vec::new();
        for (idx, out) in outs.iter().enumerate() {
            for page in out.chunks(4096) {
                for event in Page::new(page, done.header.layout()).expect("a page") {
                    let told = done.header.read(event.data).expect("a record");
                    found.push((idx, event.time, told.tid, told.what));
                }
            }
        }
        (found, done)
    }

    #[test]
    fn calls_of_tasks_that_move() {
        let write = syscall_address(1).unwrap();
        let first = [
            (10, record(1, 7, &[1])),
            (12, record(3, 7, &[500, 900])),
            (13, record(4, 8, &[])),
            (30, record(1, 8, &[1])),
        ];
        let second = [(11, record(3, 9, &[400, 500])), (20, record(2, 7, &[1])), (21, record(2, 7, &[1]))];
        let (found, done) = converted(&[file(&first), file(&second)]);
        let entry = |func| What::Entry { func };
        let exit = |func| What::Exit { func };
        assert_eq!(
            found,
            [
                (0, 100, 7, entry(write)),
                (0, 120, 7, entry(500)),
                (0, 130, 8, What::Event),
                (0, 200, 7, exit(500)),
                (0, 200, 7, exit(write)),
                (0, 300, 8, entry(write)),
                (0, 300, 8, exit(write)),
                (1, 110, 9, entry(400)),
                (1, 110, 9, exit(400)),
            ]
        );
        assert_eq!((done.n_calls, done.n_events, done.n_lost, done.n_wrong_pages), (4, 1, 0, 0));
        assert_eq!(done.addresses.into_iter().collect::<Vec<_>>(), [400, 500, write]);
    }

    #[test]
    fn losses_end_what_is_open() {
        let mut out = PageWriter::new(Vec::new());
        out.event(10, &record(1, 7, &[1])).unwrap();
        out.lost(5).unwrap();
        out.event(20, &record(1, 7, &[0])).unwrap();
        out.event(30, &record(2, 7, &[0])).unwrap();
        let (found, done) = converted(&[out.finish().unwrap()]);
        assert_eq!(found.iter().map(|found| found.1).collect::<Vec<_>>(), [100, 200, 200, 300]);
        assert_eq!(done.n_lost, 5);
    }

    #[test]
    fn any_piece_of_a_file_is_converted() {
        let whole = file(&[(10, record(1, 7, &[1])), (20, record(2, 7, &[1])), (30, record(9, 7, &[1]))]);
        for n_bytes in 0..200 {
            let (_, done) = converted(&[whole[..n_bytes].to_vec()]);
            // The header says that there is more.
            assert_eq!(done.n_wrong_pages, u64::from(n_bytes > 0 && n_bytes < 16 + 60), "{n_bytes}");
        }
    }
}
