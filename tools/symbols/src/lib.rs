//! Names for the functions of a trace that has only addresses, such as that of a kernel or of another machine.
//!
//! Not here: the functions of a binary (`rftrace-frontend`), and reading the written files (`rftrace-read`).
//!
//! # Example
//!
//! This program adds the names of a kernel's functions to a trace:
//!
//! ```no_run
//! use std::path::{Path, PathBuf};
//!
//! use rftrace_symbols::{SymbolOptions, add_symbols};
//!
//! let options = SymbolOptions::new(vec![PathBuf::from("kernel.elf")]);
//! for binary in add_symbols(Path::new("trace"), &options)? {
//!     println!("{} functions of {}", binary.functions, binary.module);
//! }
//! # Ok::<(), rftrace_read::Error>(())
//! ```

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use addr2line::Loader;
use debug::files::DebugFiles;
use inlined::{Inlined, inlined};
use rftrace_format::map::MapLine;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::record::ADDRESS_MASK;
use rftrace_format::store::Owned;
use rftrace_format::symbols::{Head, SourceLine, SourcePart, short_build_id};
use rftrace_format::text::base_name;
use rftrace_frontend::{Binary, LoadedBinary};
use rftrace_read::lines::Lines;
use rftrace_read::maps::Mapping;
use rftrace_read::{Error, Kind, Result, Trace};

pub use self::values::{ModuleValues, name_values, read_values};

mod debug;
mod inlined;
mod values;

/// So many different addresses are compared with the functions of a binary: more than programs have functions.
const MAX_ADDRESSES: usize = 1 << 20;

/// At one of so many called addresses a binary must have a function. Those of calls into other modules are in none.
const MIN_SHARE: usize = 8;

/// The options of [`add_symbols`]: the sources of the functions' names.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SymbolOptions {
    /// The paths of the ELF files.
    pub binaries: Vec<PathBuf>,
    /// The address of the lowest loadable segment of the only binary in memory, if the trace's map is wrong.
    pub load_address: Option<u64>,
    /// True to write source lines too, if the binary has them.
    pub lines: bool,
}

impl SymbolOptions {
    /// Creates options for the functions of these binaries and their source lines.
    pub fn new(binaries: Vec<PathBuf>) -> Self {
        Self { binaries, load_address: None, lines: true }
    }
}

/// The symbols and source lines that were written for a binary.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbolized {
    /// The binary's path.
    pub binary: PathBuf,
    /// The trace's module that belongs to the binary.
    pub module: String,
    /// The path of the symbol file.
    pub file: PathBuf,
    /// The number of functions in it.
    pub functions: usize,
    /// The number of functions with a source line.
    pub lines: usize,
    /// The number of called addresses in the module, and the number of those that fit the binary.
    pub called: (usize, usize),
    /// The number of functions that were entered at several places: functions with hooks were inlined into them.
    pub with_inlined: usize,
    /// True if the build-ids of binary and module are the same.
    pub is_same_build: bool,
    /// The address of the binary in memory, reduced to 48 bits.
    pub load_address: u64,
}

/// Writes the symbol file and the source lines of each binary into the trace in `dir`.
///
/// A binary belongs to the module with its build-id, else to the one with its file name, else to the one in which most
/// of the called addresses are functions of the binary. Its address comes from the map, which is corrected if it is
/// wrong.
///
/// # Errors
///
/// Those of [`Trace::open`]; [`Error::Binary`] for a file that belongs to no module of the trace, or that contains no
/// address of the trace; [`Error::WriteFile`].
pub fn add_symbols(dir: &Path, options: &SymbolOptions) -> Result<Vec<Symbolized>> {
    let trace = Trace::open(dir)?;
    let mut modules = modules(&trace);
    if modules.is_empty() {
        let map = dir.join(trace.sessions().first().map_or("sid-*.map", |session| &session.map_file));
        return Err(Error::malformed(&map, 0, "the map lists no module, so rftrace cannot name any address"));
    }
    collect_addresses(&trace, &mut modules)?;
    let mut pairs = Vec::new();
    for path in &options.binaries {
        let binary = Binary::read(path).map_err(|error| unreadable(path, &error))?;
        if binary.n_functions() == 0 {
            return Err(wrong(
                path,
                "the file has no symbols; give the binary before it was stripped, or its debug file",
            ));
        }
        let taken: Vec<usize> = pairs.iter().map(|&(idx, _, _)| idx).collect();
        let (idx, place) = find_module(&binary, &modules, &taken, options.load_address)?;
        pairs.push((idx, binary, place));
    }
    // All is known to fit: only now anything is changed.
    let owned = Owned::take(dir).map_err(|source| Error::WriteFile { path: dir.to_owned(), source })?;
    pairs
        .into_iter()
        .map(|(idx, binary, place)| write((&trace, &owned), &modules[idx], &binary, &place, options.lines))
        .collect()
}

/// Returns the source lines of a module's functions in the form of a `.dbg` file, from the module's file on this
/// machine. With `has_inlined` they list inlined functions. `None` if the file is missing, has no debug information, or
/// has another build-id.
pub fn source_lines(module: &Mapping, has_inlined: bool) -> Option<Vec<u8>> {
    let path = Path::new(&module.path);
    let binary = Binary::read(path).ok()?;
    let is_other =
        |own: &str| module.build_id.as_deref().is_some_and(|id| !short_build_id(own).eq_ignore_ascii_case(id));
    if binary.n_functions() == 0 || binary.build_id().is_some_and(is_other) {
        return None;
    }
    let debug = debug_loader(path).ok()?;
    let start = binary.link_address();
    let head = Head { n_symbols: None, path: Some(module.path.clone()), build_id: module.build_id.clone() };
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let inlined = if has_inlined { inlined(path) } else { Inlined::new() };
    let n_lines = write_lines(&mut text, &inlined, &debug, &binary.loaded_at(start), &head, start).ok()?;
    (n_lines > 0).then_some(text)
}

/// Writes the source lines of the trace's modules that are on this machine, beside their symbol files. Returns the
/// paths of the written files.
///
/// # Errors
///
/// Those of [`Trace::open`]; [`Error::WriteFile`].
pub fn add_source_lines(owned: &Owned) -> Result<Vec<PathBuf>> {
    let dir = owned.path();
    let trace = Trace::open(dir)?;
    let mut seen = HashSet::new();
    let mut written = Vec::new();
    for session in trace.sessions() {
        for mapping in &session.mappings {
            let is_new = seen.insert((mapping.path.as_str(), mapping.build_id.as_deref()));
            if !is_new || session.symbols_at(mapping.start) == 0 {
                continue;
            }
            let Some(text) = source_lines(mapping, true) else { continue };
            let name = LoadedBinary::symbol_file(dir, &mapping.path, mapping.build_id.as_deref())
                .map_err(|source| Error::Io { path: dir.to_owned(), source })?;
            let Some(name) = name else { continue };
            let path = dir.join(name).with_extension("dbg");
            let values = values_in(&path, 0)?;
            replace(owned, &path, |out| {
                out.write_all(&text)?;
                out.write_all(values.as_bytes())
            })?;
            written.push(mapping.path.clone().into());
        }
    }
    Ok(written)
}

/// The lines of a `.dbg` file that is about to be replaced that tell which values functions have, and names in them. Their addresses are to be higher by
/// `moved`.
fn values_in(path: &Path, moved: u64) -> Result<String> {
    let text = match opener::read(path, MOST_TEXT) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        text => text.map_err(|source| Error::Io { path: path.to_owned(), source })?,
    };
    let mut kept = String::new();
    let mut function = None;
    for line in String::from_utf8_lossy(&text).lines() {
        match SourcePart::parse(line) {
            Some(SourcePart::Function { addr }) => {
                let name = line.splitn(3, ' ').nth(2).unwrap_or_default();
                function = Some(format!("F: {:x} {name}\n", addr.wrapping_add(moved)));
            }
            Some(SourcePart::Arguments(_) | SourcePart::Result(_)) => {
                kept.extend(function.take());
                kept += line;
                kept.push('\n');
            }
            Some(SourcePart::Enumeration { .. } | SourcePart::Layout { .. }) => {
                kept += line;
                kept.push('\n');
            }
            _ => {}
        }
    }
    Ok(kept)
}

/// A module of the trace, in all of its sessions.
struct Module {
    path: String,
    build_id: Option<String>,
    /// The session and the range of each place where it lies.
    places: Vec<(usize, std::ops::Range<u64>)>,
    /// Addresses in its first place that were called; those of others are moved there.
    addresses: HashSet<u64>,
}

impl Module {
    fn start(&self) -> u64 {
        self.places[0].1.start
    }

    fn name(&self) -> &str {
        base_name(&self.path)
    }
}

/// A binary where it lay in the first place of its module.
struct Place {
    loaded: LoadedBinary,
    load_address: u64,
    n_known: usize,
}

impl Place {
    /// True if the binary may be the module. In a wrong one some addresses are behind calls too, by chance.
    fn fits(&self, module: &Module) -> bool {
        self.n_known * MIN_SHARE >= module.addresses.len()
    }
}

fn modules(trace: &Trace) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for (session, Mapping { start, end, path, build_id }) in
        trace.sessions().iter().enumerate().flat_map(|(idx, session)| session.mappings.iter().map(move |m| (idx, m)))
    {
        let place = (session, *start..*end);
        match modules.iter_mut().find(|module| module.path == *path && module.build_id == *build_id) {
            Some(module) => module.places.push(place),
            None => modules.push(Module {
                path: path.clone(),
                build_id: build_id.clone(),
                places: vec![place],
                addresses: HashSet::new(),
            }),
        }
    }
    modules
}

fn collect_addresses(trace: &Trace, modules: &mut [Module]) -> Result<()> {
    let mut seen = HashSet::new();
    for task in trace.tasks() {
        for record in trace.records(task) {
            let record = record?;
            if !matches!(record.kind, Kind::Entry | Kind::Exit) {
                continue;
            }
            let Some(session) = trace.session_at(task, record.time_ns) else { continue };
            if seen.len() < MAX_ADDRESSES {
                seen.insert((session, record.addr));
            }
        }
    }
    for (session, addr) in seen {
        for module in &mut *modules {
            let is_here = |place: &&(usize, std::ops::Range<u64>)| place.0 == session && place.1.contains(&addr);
            if let Some((_, range)) = module.places.iter().find(is_here) {
                let addr = addr - range.start + module.start();
                module.addresses.insert(addr);
                break;
            }
        }
    }
    Ok(())
}

/// True if a binary and a module are of one build; `None` if one of them does not tell.
fn has_same_id(binary: &Binary, module: &Module) -> Option<bool> {
    Some(binary.build_id()?.eq_ignore_ascii_case(module.build_id.as_deref()?))
}

/// The module that a binary is, and where it lay.
fn find_module(
    binary: &Binary,
    modules: &[Module],
    taken: &[usize],
    load_address: Option<u64>,
) -> Result<(usize, Place)> {
    let path = binary.path();
    let is_free = |idx: &usize| !taken.contains(idx);
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();

    let by_id = (0..modules.len()).filter(is_free).find(|&idx| has_same_id(binary, &modules[idx]) == Some(true));
    let by_name = || {
        let mut named = (0..modules.len()).filter(is_free).filter(|&idx| modules[idx].name() == file_name);
        named.next().filter(|_| named.next().is_none())
    };
    if let Some(idx) = by_id.or_else(by_name) {
        let module = &modules[idx];
        if has_same_id(binary, module) == Some(false) {
            return Err(other_build(binary, module));
        }
        let place = place(binary, module, load_address);
        return if place.fits(module) || has_same_id(binary, module) == Some(true) {
            Ok((idx, place))
        } else {
            Err(no_address(path, module, &place, load_address))
        };
    }
    let fitting = (0..modules.len()).filter(is_free).filter(|&idx| has_same_id(binary, &modules[idx]) != Some(false));
    let places = fitting.map(|idx| (idx, place(binary, &modules[idx], load_address)));
    // Of equally good ones the first.
    let best = places
        .filter(|(_, place)| place.n_known > 0)
        .reduce(|best, next| if next.1.n_known > best.1.n_known { next } else { best });
    match (best, modules) {
        (Some(found), _) => Ok(found),
        (None, [module]) if taken.is_empty() && has_same_id(binary, module) == Some(false) => {
            Err(other_build(binary, module))
        }
        (None, [module]) if taken.is_empty() && !module.addresses.is_empty() => {
            Err(no_address(path, module, &place(binary, module, load_address), load_address))
        }
        (None, _) => {
            let names: BTreeSet<&str> = modules.iter().map(Module::name).collect();
            let names: Vec<&str> = names.into_iter().collect();
            Err(wrong(path, format!("the file is not one of the trace's modules: {}", names.join(", "))))
        }
    }
}

/// Where a binary lies, if it is this module: of the places that the map may mean, the one where most called addresses fit.
fn place(binary: &Binary, module: &Module, load_address: Option<u64>) -> Place {
    let candidates = match load_address {
        Some(address) => vec![address],
        None => {
            let linked = binary.link_address();
            // `rftrace import` begins the map with the page of the first function.
            let first_function = binary.loaded_at(linked).range().start;
            vec![module.start(), linked, linked.wrapping_add(module.start().wrapping_sub(first_function))]
        }
    };
    let count = |load_address: u64| {
        let loaded = binary.loaded_at(load_address);
        let n_known = module.addresses.iter().filter(|&&address| loaded.is_recorded_at(address)).count();
        Place { loaded, load_address: load_address & ADDRESS_MASK, n_known }
    };
    // Making a table takes time: the first that is right for all is taken.
    let is_right = |place: &Place| place.n_known == module.addresses.len();
    let (first, others) = (count(candidates[0]), &candidates[1..]);
    let best =
        others.iter().fold(first, |best, &other| if is_right(&best) { best } else { better(best, count(other)) });
    match load_address {
        None if !best.fits(module) => match binary.find_load_address(&module.addresses) {
            Some(found) => better(best, count(found)),
            None => best,
        },
        _ => best,
    }
}

/// Of equally good ones the first.
fn better(first: Place, second: Place) -> Place {
    if second.n_known > first.n_known { second } else { first }
}

/// Writes the files of one binary.
fn write(
    (trace, owned): (&Trace, &Owned),
    module: &Module,
    binary: &Binary,
    place: &Place,
    lines: bool,
) -> Result<Symbolized> {
    let dir = owned.path();
    let range = place.loaded.range();
    // Symbols are relative to the map's line, and cannot lie before it.
    let start = if range.start >= module.start() { module.start() } else { range.start };
    let name = LoadedBinary::symbol_file(dir, &module.path, module.build_id.as_deref())
        .map_err(|source| Error::Io { path: dir.to_owned(), source })?;
    let Some(name) = name else {
        let reason = "uftrace cannot distinguish its path and build-id from those of another module of the trace";
        return Err(wrong(binary.path(), reason));
    };
    let debug = lines.then(|| debug_loader(binary.path())).transpose().map_err(|error| {
        wrong(binary.path(), format!("cannot read its debug information ({error}); leave it out by --no-lines"))
    })?;
    let file = dir.join(&name);
    replace(owned, &file, |out| place.loaded.write_symbols(out, &module.path, start))?;
    let mut n_lines = 0;
    if let Some(debug) = debug {
        let path = file.with_extension("dbg");
        let values = values_in(&path, module.start().wrapping_sub(start))?;
        replace(owned, &path, |out| {
            // uftrace takes the file for another module's unless this is what the map has.
            let head = Head { n_symbols: None, path: Some(module.path.clone()), build_id: module.build_id.clone() };
            n_lines = write_lines(out, &inlined(binary.path()), &debug, &place.loaded, &head, start)?;
            out.write_all(values.as_bytes())
        })?;
        if n_lines == 0 && values.is_empty() {
            fs::remove_file(&path).map_err(|source| Error::WriteFile { path, source })?;
        }
    }
    for (session, mapped) in &module.places {
        let moved = mapped.start.wrapping_sub(module.start());
        let wanted = start.wrapping_add(moved) & ADDRESS_MASK;
        let end = range.end.wrapping_add(moved) & ADDRESS_MASK;
        if wanted != mapped.start || end > mapped.end {
            let map = dir.join(&trace.sessions()[*session].map_file);
            change_map(owned, &map, &module.path, wanted..end.max(mapped.end))?;
        }
    }
    Ok(Symbolized {
        binary: binary.path().to_owned(),
        module: module.path.clone(),
        file,
        functions: binary.n_functions(),
        lines: n_lines,
        called: (module.addresses.len(), place.n_known),
        with_inlined: with_inlined(module, place),
        is_same_build: has_same_id(binary, module) == Some(true),
        load_address: place.load_address,
    })
}

/// How many functions were entered at several addresses.
fn with_inlined(module: &Module, place: &Place) -> usize {
    let start = place.loaded.range().start;
    let functions: Vec<u64> = place.loaded.functions(start).map(|(address, _, _)| start + address).collect();
    let mut n_entries = vec![0_usize; functions.len()];
    for &address in module.addresses.iter().filter(|&&address| place.loaded.is_recorded_at(address)) {
        let idx = functions.partition_point(|&function| function <= address).checked_sub(1);
        if let Some(n_entries) = idx.and_then(|idx| n_entries.get_mut(idx)) {
            *n_entries += 1;
        }
    }
    n_entries.iter().filter(|&&n_entries| n_entries > 1).count()
}

/// Opens the reader of a binary's source lines.
fn debug_loader(path: &Path) -> std::result::Result<Loader, Box<dyn std::error::Error>> {
    let path = path.canonicalize()?;
    let files = DebugFiles::of(&path);
    Loader::new_with_sup(files.units, files.common)
}

/// Writes a line of source for each function that has one. Returns for how many.
fn write_lines(
    out: &mut dyn Write,
    inlined: &Inlined,
    debug: &Loader,
    loaded: &LoadedBinary,
    head: &Head,
    start: u64,
) -> io::Result<usize> {
    write!(out, "{head}")?;
    let mut n_lines = 0;
    for (addr, linked, name) in loaded.functions(start) {
        let Some((line, path)) = source_line(debug, linked) else { continue };
        let inlined = inlined.get(&linked).map_or(&[][..], |names| names);
        write!(out, "{}", SourceLine { addr, name: &name, line, path: &path, inlined })?;
        n_lines += 1;
    }
    Ok(n_lines)
}

/// The line with which a function begins; of what was inlined there, that of the function itself.
fn source_line(debug: &Loader, address: u64) -> Option<(u32, String)> {
    let mut frames = debug.find_frames(address).ok()?;
    let mut location = None;
    while let Ok(Some(frame)) = frames.next() {
        location = frame.location;
    }
    let location = location?;
    let path = location.file?.replace(char::is_control, "_");
    location.line.filter(|&line| line > 0 && !path.is_empty()).map(|line| (line, path))
}

/// Gives a module another range in a map.
fn change_map(owned: &Owned, map: &Path, module: &str, range: std::ops::Range<u64>) -> Result<()> {
    let mut lines = Lines::open(map)?;
    let mut is_done = false;
    let mut changed = Vec::new();
    while lines.next()?.is_some() {
        let line = lines.parsed(MapLine::parse)?;
        if line.path != module {
            changed.extend_from_slice(lines.current_bytes());
        } else if !is_done {
            is_done = true;
            changed.extend(MapLine { start: range.start, end: range.end, ..line }.to_string().into_bytes());
        }
    }
    replace(owned, map, |out| out.write_all(&changed))
}

/// Writes a file of the trace, which comes to its place when it is whole.
fn replace(owned: &Owned, path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    owned.replace(&name, fill).map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

fn wrong(path: &Path, reason: impl Into<String>) -> Error {
    Error::Binary { path: path.to_owned(), reason: reason.into() }
}

/// The error of the frontend names the path too.
fn unreadable(path: &Path, error: &rftrace_frontend::Error) -> Error {
    let text = error.to_string();
    let prefix = format!("cannot read {}: ", path.display());
    wrong(path, text.strip_prefix(&prefix).unwrap_or(&text))
}

fn other_build(binary: &Binary, module: &Module) -> Error {
    let [found, told] = [binary.build_id(), module.build_id.as_deref()].map(Option::unwrap_or_default);
    let reason = format!(
        "its build-id is {found}, but that of the traced {} is {told}: give the binary of that build",
        module.name()
    );
    wrong(binary.path(), reason)
}

fn no_address(path: &Path, module: &Module, place: &Place, load_address: Option<u64>) -> Error {
    let assumed = match load_address {
        Some(address) => format!("at {address:#x}"),
        None => format!("at {:#x} as in the map, or at its link address", module.start()),
    };
    let found = match place.n_known {
        0 => "none".to_owned(),
        n => format!("only {n}"),
    };
    let reason = format!(
        "{found} of the {} called addresses in {} can be in a function of this file, loaded {assumed}: give the traced \
         binary, or the address where it was loaded (--load-address)",
        module.addresses.len(),
        module.name()
    );
    wrong(path, reason)
}
