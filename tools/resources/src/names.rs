//! The functions and source lines of return addresses, with inlined functions, from the files of programs and
//! libraries, or else from the symbol files of the trace.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::fs;
use std::path::Path;
use std::rc::Rc;

use addr2line::Loader;
use cpp_demangle::{BorrowedSymbol, DemangleOptions};
use object::Object;
use object::read::ReadCache;
use rftrace_format::opener;
use rftrace_format::symbols::ModuleId;
use rftrace_format::text::{Shown, base_name, is_unseen};
use rftrace_read::{ShownNames, SymbolFiles};

use crate::recording::{Frame, Module, Recording};

/// The longest name, in bytes.
const MAX_BYTES: usize = 4096;

/// A function on a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The function's name, or the module with the address in it if the name is unknown.
    pub function: String,
    /// The source file and the line of the call.
    pub place: Option<(String, u32)>,
    /// True if the function is inlined into the next one.
    pub is_inlined: bool,
    /// The file name of the module; empty without one.
    pub module: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line_of(&self.function))
    }
}

impl Name {
    /// Returns the line of a stack for it, with the function's name among `names`.
    #[must_use]
    pub fn line(&self, names: &ShownNames) -> String {
        self.line_of(names.get(&self.function))
    }

    /// True for a function of a runtime or standard library; also for its method of a type without a path, as `<T as core::convert::Into<U>>::into`.
    fn is_standard(&self) -> bool {
        let has_beginning = |path: &str| STANDARD.iter().any(|beginning| path.starts_with(beginning));
        let is_own = |path: &str| path.contains("::") && !has_beginning(path);
        let path = self.function.trim_start_matches(['<', '&', '[']);
        let of_library = match path.split_once(" as ").filter(|_| self.function.starts_with('<')) {
            Some((implementor, of)) => !is_own(implementor) && has_beginning(of),
            None => has_beginning(path),
        };
        of_library || RUNTIMES.contains(&&*self.module)
    }

    fn line_of(&self, function: &str) -> String {
        let place = self.place.as_ref().map_or_else(String::new, |(file, line)| format!("  {file}:{line}"));
        let inlined = if self.is_inlined { "  (inlined)" } else { "" };
        format!("{function}{place}{inlined}")
    }
}

/// The modules of the C library and of compilers, which take memory for their callers.
pub(crate) const RUNTIMES: [&str; 4] = ["libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];

/// The beginnings of names of functions of Rust's and C++'s standard libraries, which do so, too.
const STANDARD: [&str; 9] =
    ["alloc::", "core::", "std::", "hashbrown::", "__rust", "__rdl_", "__rg_", "__gnu_cxx::", "operator new"];

/// Returns the first `depth` functions of a stack from that on which has called a runtime or standard library.
#[must_use]
pub fn of_caller(stack: &[Name], depth: usize) -> &[Name] {
    let caller = stack.iter().position(|name| !name.is_standard()).unwrap_or(0);
    let stack = &stack[caller..];
    &stack[..depth.min(stack.len())]
}

/// Returns `names` with those of the first `depth` functions of each stack.
#[must_use]
pub fn names_of_stacks<'s>(
    names: &ShownNames,
    stacks: impl IntoIterator<Item = &'s [Name]>,
    depth: usize,
) -> ShownNames {
    let mut names = names.clone();
    let functions = stacks.into_iter().flat_map(|stack| of_caller(stack, depth));
    names.add_all(functions.map(|name| name.function.as_str()));
    names
}

/// A cache of names.
#[derive(Default)]
pub struct Names {
    /// By module: its debug information, if there is any here.
    files: HashMap<u32, Option<Loader>>,
    known: HashMap<Frame, Rc<[Name]>>,
    /// Files that are not those that were recorded.
    changed: Vec<String>,
    /// Those of the trace, for such files.
    symbols: Option<SymbolFiles>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl Names {
    /// Names of a recording's modules. Where a module's file is gone or another one, the trace's symbol files have them.
    #[must_use]
    pub fn of_recording(recording: &Recording) -> Self {
        Self { symbols: Some(SymbolFiles::new(recording.dir())), ..Self::default() }
    }

    /// Returns the functions of a frame: inlined ones first, from the innermost, then the function itself.
    pub fn of(&mut self, modules: &[Module], frame: Frame) -> Rc<[Name]> {
        if let Some(known) = self.known.get(&frame) {
            return Rc::clone(known);
        }
        let names: Rc<[Name]> = self.find(modules, frame).into();
        self.known.insert(frame, Rc::clone(&names));
        names
    }

    /// The symbol that an address lies in, as the symbol table has it, and how far behind its beginning.
    pub(crate) fn symbol(&mut self, modules: &[Module], frame: Frame) -> Option<(String, u64)> {
        let number = frame.module?;
        let module = modules.get(number as usize)?;
        let file = Self::file(&mut self.files, &mut self.changed, number, module)?;
        let symbol = file.find_symbol_info(frame.address)?;
        let name = symbol.name();
        // Versions are no part of names.
        let name = name.split('@').next().filter(|name| !name.is_empty()).unwrap_or(name);
        let name = Shown::new(&name[..name.floor_char_boundary(MAX_BYTES)]);
        Some((name.to_string(), frame.address - symbol.address()))
    }

    /// The debug information of a module, opened once.
    fn file<'f>(
        files: &'f mut HashMap<u32, Option<Loader>>,
        changed: &mut Vec<String>,
        number: u32,
        module: &Module,
    ) -> Option<&'f Loader> {
        let file = files.entry(number).or_insert_with(|| match open(module) {
            Ok(file) => file,
            Err(NotThere) => {
                changed.push(module.path.clone());
                None
            }
        });
        file.as_ref()
    }

    /// Returns the files that are missing, or of another build than the recorded ones. Their functions have no lines, and
    /// only the trace's own names.
    pub fn changed(&self) -> &[String] {
        &self.changed
    }

    fn find(&mut self, modules: &[Module], frame: Frame) -> Vec<Name> {
        let module = frame.module.and_then(|number| Some((number, modules.get(number as usize)?)));
        let Some((number, module)) = module else {
            let function = format!("{:#x}", frame.address);
            return vec![Name { function, place: None, is_inlined: false, module: String::new() }];
        };
        let name = Shown::new(base_name(&module.path)).to_string();
        let file = Self::file(&mut self.files, &mut self.changed, number, module);
        // The call is before the address to which it returns.
        let address = frame.address.saturating_sub(1);
        let mut names = file.map(|file| names_in(file, address, &name)).unwrap_or_default();
        if names.is_empty() {
            let build_id = Some(&*module.build_id).filter(|id| !id.is_empty());
            let id = ModuleId { path: &module.path, build_id };
            let known = self.symbols.as_mut().and_then(|files| files.name(id, module.offset(address)));
            let function = known.unwrap_or_else(|| format!("{name}+{:#x}", frame.address));
            names.push(Name { function, place: None, is_inlined: false, module: name });
        }
        names
    }
}

/// The file is not here, or another one.
struct NotThere;

/// The debug information of a module, if it is understood.
fn open(module: &Module) -> Result<Option<Loader>, NotThere> {
    let path = Path::new(&module.path);
    // Nothing else is opened: a pipe would keep the reader waiting. The vDSO has no file.
    if !path.is_absolute() {
        return Ok(None);
    }
    if !fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
        return Err(NotThere);
    }
    let own = || {
        let cache = ReadCache::new(opener::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let id = file.build_id().ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    if !module.build_id.is_empty() && own().is_some_and(|own| own != module.build_id) {
        return Err(NotThere);
    }
    Ok(Loader::new(path).ok())
}

fn names_in(file: &Loader, address: u64, module: &str) -> Vec<Name> {
    let mut names = Vec::new();
    let symbol = || file.find_symbol(address).map(readable);
    if let Ok(mut frames) = file.find_frames(address) {
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.and_then(|function| Some(readable(&function.raw_name().ok()?)));
            let place = frame.location.and_then(|place| Some((Shown::new(place.file?).to_string(), place.line?)));
            let Some(function) = function.or_else(symbol) else { continue };
            names.push(Name { function, place, is_inlined: true, module: module.to_owned() });
        }
    }
    if names.is_empty()
        && let Some(function) = symbol()
    {
        names.push(Name { function, place: None, is_inlined: false, module: module.to_owned() });
    }
    if let Some(last) = names.last_mut() {
        last.is_inlined = false;
    }
    names
}

/// A name as it is written in the source: without parameters of C++ functions, without hashes of Rust.
fn readable(name: &str) -> String {
    let mut out = Limited(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(name)
        && write!(out, "{rust:#}").is_ok()
    {
        return out.0;
    }
    out.0.clear();
    // Behind a dot or an @ is what compilers and versions add.
    let end = name.find(['.', '@']).filter(|&end| end > 0).unwrap_or(name.len());
    // A name as short as those of C may be that of a type, mangled.
    if name.starts_with("_Z")
        && let Ok(symbol) = BorrowedSymbol::new(&name.as_bytes()[..end])
    {
        let options = DemangleOptions::new().no_params().no_return_type();
        if symbol.structured_demangle(&mut out, &options).is_ok() {
            return out.0;
        }
    }
    let name = &name[..name.floor_char_boundary(MAX_BYTES)];
    Shown::new(name).to_string()
}

/// Takes no more than [`MAX_BYTES`], and no line ends.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_BYTES || text.contains(is_unseen) {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_begin_with_the_caller_of_a_library() {
        let name = |&(function, module): &(&str, &str)| Name {
            function: function.to_owned(),
            place: None,
            is_inlined: false,
            module: module.to_owned(),
        };
        let functions = |stack: &[(&str, &str)], depth| -> Vec<String> {
            let stack: Vec<Name> = stack.iter().map(name).collect();
            of_caller(&stack, depth).iter().map(|name| name.function.clone()).collect()
        };
        let libraries = [
            ("alloc::raw_vec::RawVecInner<A>::try_allocate_in", "app"),
            ("<alloc::vec::Vec<T> as core::clone::Clone>::clone", "app"),
            ("<T as core::convert::Into<U>>::into", "app"),
            ("hashbrown::raw::RawTable<T,A>::reserve_rehash", "app"),
            ("operator new(unsigned long)", "libstdc++.so.6"),
            ("strdup", "libc.so.6"),
        ];
        for caller in
            ["app::make", "main", "<app::Made as core::clone::Clone>::clone", "<alloc::vec::Vec<T> as app::Make>::make"]
        {
            let stack =
                [&libraries[..], &[(caller, "app"), ("core::ops::function::FnOnce::call_once", "app")]].concat();
            assert_eq!(functions(&stack, 1), [caller]);
            assert_eq!(functions(&stack, usize::MAX).len(), 2);
        }
        assert_eq!(functions(&libraries, usize::MAX).len(), libraries.len());
    }

    #[test]
    fn names_as_in_the_source() {
        for (mangled, name) in [
            ("main", "main"),
            ("d", "d"),
            ("_ZN3foo3barEi", "foo::bar"),
            ("_Znwm", "operator new"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("malloc@@GLIBC_2.2.5", "malloc@@GLIBC_2.2.5"),
            (".Lx\n", ".Lx\\n"),
        ] {
            assert_eq!(readable(mangled), name);
        }
    }
}
