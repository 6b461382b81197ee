//! The conversion of an image to a uftrace directory.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rftrace::abi::{ADDRESS_SHIFT, kind};

use crate::clock::{ClockPair, from_start};
use crate::decode::{self, Minima};
use crate::elf::binary::Binary;
use crate::elf::table::SymbolTable;
use crate::error::{Error, NoEventsCause};
use crate::host::linux::modules::{Module, map_path};
use crate::host::linux::sysinfo;
use crate::host::machine::SystemInfo;
use crate::host::program::{Identify, Identity, Program};
use crate::image::contents::{Image, Source};
use crate::image::{flag, head};
use crate::uftrace::directory::{self, Recording};
use rftrace_format::clock::TscClock;
use rftrace_format::gaps::Gaps;
use rftrace_format::map::NO_STACK;
use rftrace_format::record::ADDRESS_MASK;

/// The options for importing an image or raw records, for [`Image::write_directory`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImportOptions {
    /// The path of the kernel's or program's ELF file, for the functions' names. Without it the trace shows addresses.
    pub binary: Option<PathBuf>,
    /// The virtual address of the binary's lowest loadable segment; it overrides the image. For raw records, which hold
    /// none, the import finds it by the addresses in the records.
    pub load_address: Option<u64>,
    /// The frequency of the time stamp counter in Hz; it overrides the image.
    pub tsc_hz: Option<u64>,
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// The number of entries and exits.
    pub events: u64,
    /// The number of threads with events.
    pub threads: usize,
    /// The number of calls beyond the deepest recorded level. The trace shows their places.
    pub lost: u64,
    /// Warnings, a line each: missing parts of the image, and unknown facts.
    pub warnings: Vec<String>,
}

impl Image {
    /// Writes the trace as a directory for `rftrace replay` and uftrace. Creates it if it is absent, and replaces an
    /// older trace.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] for the binary, [`Error::NoEvents`], [`Error::Write`].
    pub fn write_directory(&self, directory: &Path, options: &ImportOptions) -> Result<Imported, Error> {
        let mut warnings = self.warnings().to_vec();
        let tasks = decode::tasks(self.chunks(), self.open_functions().clone());
        let start_tsc = self.word(head::FIRST_TSC);
        if start_tsc == 0 || !tasks.iter().any(|task| task.has_record_since(start_tsc)) {
            let cause = if tasks.is_empty() { NoEventsCause::Unknown } else { NoEventsCause::NoCalls };
            return Err(Error::NoEvents { cause });
        }
        let clock = self.clock(options, &mut warnings);
        let tsc_hz_source = match (options.tsc_hz, self.tsc_hz_source()) {
            _ if self.source() == Source::RawNanos => "none",
            (Some(_), _) => "option",
            (None, Some(source)) => source.name(),
            (None, None) => "none",
        };
        let program = self.program(options, &clock, &mut warnings)?;
        let stop_tsc = self.word(head::STOP_TSC);
        let pairs = [start_tsc, stop_tsc].map(|tsc| ClockPair { tsc, nanos: clock.nanos(tsc) });
        let recording = Recording {
            tasks: &tasks,
            start_tsc,
            stop_tsc,
            is_cut: false,
            marks: Vec::new(),
            clock,
            pairs,
            unix_nanos: self.unix_nanos(),
            minima: &Minima::default(),
            tsc_hz_source: tsc_hz_source.into(),
            gaps: Gaps {
                full: u64::from(self.word(head::FLAGS) & flag::FULL != 0),
                overwritten: self.word(head::N_OVERWRITTEN),
                untraced_threads: self.word(head::N_UNTRACED_THREADS),
                dropped: if self.word(head::FLAGS) & flag::STREAMED != 0 {
                    self.word(head::N_LOST_NO_CHUNK)
                } else {
                    0
                },
                library: true,
                ..Gaps::default()
            },
            n_writers: directory::most_writers(),
            what_fits: false,
            done: None,
        };
        let totals = directory::write(&recording, directory, &program)?;
        if totals.last_nanos == u64::MAX {
            warnings.push(format!(
                "at {} ticks a second the recording is longer than 584 years, the maximum in nanoseconds: later records get the \
                 time of the maximum; give the true frequency with --tsc-hz",
                clock.hz()
            ));
        }
        if totals.invariant_tsc == Some(false) {
            warnings
                .push("the processor's time stamp counter may not run at one rate: times may be inexact".to_owned());
        }
        warnings.extend(totals.left_out.map(|error| error.with_remedy()));
        Ok(Imported { events: totals.n_events, threads: totals.n_threads, lost: totals.n_lost, warnings })
    }

    /// Returns the clock of the trace. It begins at the counter's 0, as if the machine was switched on then.
    fn clock(&self, options: &ImportOptions, warnings: &mut Vec<String>) -> TscClock {
        /// The rate of an unknown clock: a tick is a nanosecond.
        const UNKNOWN_HZ: u64 = 1_000_000_000;

        let told = options.tsc_hz.filter(|&hz| hz > 0);
        let remark = match (self.source(), told, self.tsc_hz()) {
            (Source::RawNanos, Some(_), _) => "the times in this file are nanoseconds already: --tsc-hz has no effect",
            (Source::Kernel, None, None) => {
                "the frequency of the time stamp counter is unknown: times are ticks, not nanoseconds; give --tsc-hz, or set it \
                 in the kernel (`Machine::tsc_hz`)"
            }
            (Source::RawTicks, None, _) => {
                "times are ticks, not nanoseconds: this file of rftrace-frontend 0.3 has no frequency of the time stamp \
                 counter; give --tsc-hz (Linux prints it at boot: dmesg | grep -i tsc)"
            }
            (Source::RawUnknown, None, _) => {
                "times count as nanoseconds; if rftrace-frontend 0.3 has written this file, they are ticks: give --tsc-hz"
            }
            _ => "",
        };
        if !remark.is_empty() {
            warnings.push(remark.to_owned());
        }
        let told = told.filter(|_| self.source() != Source::RawNanos);
        let hz = told.or_else(|| self.tsc_hz()).unwrap_or(UNKNOWN_HZ);
        from_start(self.word(head::FIRST_TSC), hz)
    }

    fn unix_nanos(&self) -> Option<u64> {
        Some(self.word(head::WALL_NANOS)).filter(|&nanos| nanos > 0)
    }

    /// Returns the program: the facts of the metadata, and the kernel's functions.
    fn program(&self, options: &ImportOptions, clock: &TscClock, warnings: &mut Vec<String>) -> Result<Program, Error> {
        let binary = options.binary.as_deref().map(Binary::read).transpose()?;
        let load_address = options.load_address.or_else(|| self.load_address()).or_else(|| match self.source() {
            Source::Kernel => None,
            _ => binary.as_ref()?.find_load_address(&self.called_addresses()),
        });
        let file_name = || Some(options.binary.as_deref()?.file_name()?.to_string_lossy().into_owned());
        let name = match (self.name().trim(), self.source()) {
            ("", Source::Kernel) => "kernel".to_owned(),
            ("", _) => file_name().unwrap_or_else(|| "program".to_owned()),
            (name, _) => name.to_owned(),
        };
        let (range, table) = match binary {
            Some(binary) => {
                let path = binary.path().to_owned();
                let (range, table) = binary.into_table().loaded_at(load_address);
                warnings.extend(self.doubt(&path, load_address, range.start, &table));
                (range, Some(table))
            }
            None => {
                warnings.push("no binary is given (--binary): functions appear as addresses".to_owned());
                (load_address.unwrap_or(0) & ADDRESS_MASK..NO_STACK.start, None)
            }
        };
        let build_id = table.as_ref().and_then(|table| table.build_id().map(str::to_owned));
        let module = Module::of_image(&name, range, build_id.clone());
        let exe_name = map_path(Path::new(&name));
        let [unix_seconds, first_seconds] = [self.unix_nanos().unwrap_or(0), clock.nanos(self.word(head::FIRST_TSC))]
            .map(|nanos| (nanos / 1_000_000_000).cast_signed());
        let system = SystemInfo {
            command_line: exe_name.clone(),
            exe_name: exe_name.clone(),
            build_id,
            cpus_online: 1,
            cpus_possible: 1,
            cpu_description: "x86-64".to_owned(),
            memory: "0.0 / 0.0 GB".to_owned(),
            kernel: exe_name.clone(),
            hostname: exe_name.clone(),
            distribution: "\"none\"".to_owned(),
            record_date: sysinfo::local_date(unix_seconds),
            utc_offset: if unix_seconds > 0 { unix_seconds - first_seconds } else { 0 },
            ..SystemInfo::default()
        };
        let tsc_hz = self.tsc_hz().zip(self.tsc_hz_source()).map(|(hz, source)| (hz, source.name()));
        let is_kernel = self.source() == Source::Kernel;
        let invariant_tsc = is_kernel.then(|| self.word(head::FLAGS) & flag::INVARIANT_TSC != 0);
        Ok(Program {
            pid: 1,
            identify: Identify::Function(Identity::of_number),
            exe_name,
            modules: vec![(module, table.map(Arc::new))],
            opened: Vec::new(),
            without_names: None,
            stack: None,
            system,
            tsc_hz,
            invariant_tsc,
        })
    }

    /// Returns the addresses of all entries, each once.
    fn called_addresses(&self) -> HashSet<u64> {
        let records = self.chunks().flat_map(|chunk| {
            let taken_tsc = chunk.header.taken_tsc.load(std::sync::atomic::Ordering::Relaxed);
            chunk.records.iter().filter_map(move |record| record.read(taken_tsc))
        });
        records.filter(|(_, word)| word & kind::MASK == kind::ENTRY).map(|(_, word)| word >> ADDRESS_SHIFT).collect()
    }

    /// Returns a warning if the binary seems wrong: most of the records lie in none of its functions.
    fn doubt(&self, path: &Path, load_address: Option<u64>, start: u64, table: &SymbolTable) -> Option<String> {
        let path = path.display();
        if table.symbols().is_empty() {
            return Some(format!("{path} has no symbols: functions appear as addresses; give a binary with symbols"));
        }
        let addresses = self.called_addresses();
        let is_known = |address: &&u64| address.checked_sub(start).is_some_and(|offset| table.lookup(offset).is_some());
        let n_known = addresses.iter().filter(is_known).count();
        let place = load_address.map_or("at its link address".to_owned(), |address| format!("at {address:#x}"));
        (2 * n_known < addresses.len()).then(|| {
            format!(
                "only {n_known} of {} called functions are in {path}, loaded {place}: is it the traced binary, and is the load \
                 address right (--load-address)?",
                addresses.len()
            )
        })
    }
}
