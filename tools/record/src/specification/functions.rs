//! The functions of a program and its libraries, by their names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cpp_demangle::DemangleOptions;
use object::elf;
use object::{Object, ObjectSymbol, SymbolFlags};
use rftrace_format::opener::{self, MOST_PROGRAM};
use rftrace_read::Pattern;

use crate::program::libraries;

/// A program, or a library loaded with it.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) path: PathBuf,
    pub(super) is_program: bool,
    /// Those callable by others.
    pub(super) exported: Vec<String>,
    /// Those named by it alone.
    pub(super) internal: Vec<String>,
    /// The beginnings of functions, as in the file, by their names; without those chosen by processor.
    addresses: BTreeMap<String, BTreeSet<u64>>,
}

impl Module {
    pub(super) fn open(path: &Path, is_program: bool) -> Result<Self> {
        let shown = || format!("cannot read {}", path.display());
        let data = opener::read(path, MOST_PROGRAM).with_context(shown)?;
        let file = object::File::parse(&*data).with_context(shown)?;
        let is_function = |symbol: &object::Symbol<'_, '_>| {
            let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { return false };
            !symbol.is_undefined() && [elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&st_info.st_type())
        };
        let names = |symbols: &mut dyn Iterator<Item = object::Symbol<'_, '_>>| {
            let names = symbols.filter(|symbol| is_function(symbol)).filter_map(|symbol| {
                // Versions stand behind an @ in some tables.
                let name = symbol.name().ok()?;
                Some(name.split('@').next().unwrap_or(name).to_owned())
            });
            let mut names: Vec<String> = names.collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let exported = names(&mut file.dynamic_symbols());
        let mut internal = names(&mut file.symbols());
        internal.retain(|name| exported.binary_search(name).is_err());
        let mut addresses: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()).filter(is_function) {
            let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { continue };
            if let (elf::STT_FUNC, Ok(name)) = (st_info.st_type(), symbol.name()) {
                let name = name.split('@').next().unwrap_or(name).to_owned();
                addresses.entry(name).or_default().insert(symbol.address());
            }
        }
        Ok(Self { path: path.to_owned(), is_program, exported, internal, addresses })
    }

    /// True for a function of the dynamic linker, if this is that.
    pub(super) fn is_linkers(&self, name: &String) -> bool {
        self.name().starts_with("ld-linux") && self.exported.binary_search(name).is_ok()
    }

    /// The beginnings of functions of this name with room for a branch. None in the C library, as the recording needs
    /// it.
    pub(super) fn addresses(&self, name: &str) -> impl Iterator<Item = u64> {
        const NEEDED: [&str; 3] = ["libc.so", "ld-linux", "libpthread.so"];
        let is_needed = NEEDED.iter().any(|needed| self.name().starts_with(needed));
        self.addresses.get(name).filter(|_| !is_needed).into_iter().flatten().copied()
    }

    pub(super) fn name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }
}

/// The program and all libraries loaded with it.
pub(super) fn modules(program: &Path) -> Result<Vec<Module>> {
    let mut all = vec![Module::open(program, true)?];
    for path in libraries(program)? {
        all.push(Module::open(&path, false)?);
    }
    Ok(all)
}

/// Pattern of wanted functions: a name, a glob, a demangled name; or a shell pattern for the name as c++filt writes it, and for no other.
pub(super) struct Wanted {
    pattern: Pattern,
    is_shell: bool,
}

impl Wanted {
    pub(super) fn new(text: &str, is_shell: bool) -> Result<Self> {
        // Two slashes would make a regex of it.
        let text = if is_shell && text.starts_with('/') { format!("\\{text}") } else { text.to_owned() };
        match Pattern::new(&text) {
            Ok(pattern) => Ok(Self { pattern, is_shell }),
            Err(error) => bail!("{error}"),
        }
    }

    pub(super) fn is(&self, name: &str) -> bool {
        if self.is_shell {
            return self.pattern.matches(&as_by_cxxfilt(name));
        }
        if self.pattern.matches(name) {
            return true;
        }
        let [plain, full] = readable(name);
        let is_so = |name: Option<String>| name.is_some_and(|name| self.pattern.matches(&name));
        // All characters of a pattern are those of the name, so parameters are only looked at on request.
        is_so(plain) || self.pattern.has_parameters() && is_so(full)
    }
}

/// The name of a function with its parameters, as c++filt writes it; as it is, if it is not mangled.
pub(super) fn as_by_cxxfilt(name: &str) -> Cow<'_, str> {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return Cow::Owned(format!("{rust:#}"));
    }
    let is_mangled = name.starts_with("_Z") && name.len() <= 4096;
    let symbol = is_mangled.then(|| cpp_demangle::Symbol::new(name).ok()).flatten();
    symbol.and_then(|symbol| symbol.demangle().ok()).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// The reason if no other function can call this one in its caller's place. One recorded at its call (`is_early`) takes no
/// other's place.
pub(super) fn why_not_caught(name: &str, is_early: bool) -> Option<&'static str> {
    match name {
        "__errno_location" | "dlvsym" => Some("is part of the tracer's own work"),
        "__tls_get_addr" => Some(OF_LINKER),
        _ if ["_dl_", "__rtld_", "__tunable_"].iter().any(|beginning| name.starts_with(beginning)) => Some(OF_LINKER),
        // The dynamic linker calls those that choose functions by the processor, and these call others.
        "getauxval"
        | "__getauxval"
        | "__get_cpu_features"
        | "__x86_get_cpuid_feature_leaf"
        | "__cpu_indicator_init" => Some("may run before the tracer is ready"),
        "mcount" | "_mcount" | "__fentry__" => Some("depends on the address of its caller"),
        _ if has_vectors(name) => Some("has arguments in whole vector registers"),
        _ if is_early => None,
        "setjmp" | "_setjmp" | "sigsetjmp" | "__sigsetjmp" | "getcontext" | "__getcontext" | "vfork" | "__vfork" => {
            Some("returns twice, the second time without its frame")
        }
        "__libc_start_main" => Some("runs the whole program"),
        "dlopen" | "dlmopen" | "dlsym" | "backtrace" => Some("depends on the address of its caller"),
        // They look for the caller's frame, and print what they find.
        _ if name.starts_with("_Unwind_") => Some("depends on the address of its caller"),
        _ => None,
    }
}

/// The reason against functions of the dynamic linker.
pub(super) const OF_LINKER: &str = "belongs to the dynamic linker, which the tracer itself uses";

/// True for a function with vectors longer than 16 bytes, of which the stubs keep no more: of libmvec, or in C++.
fn has_vectors(name: &str) -> bool {
    let of_libmvec = ["_ZGVc", "_ZGVd", "_ZGVe"].iter().any(|beginning| name.starts_with(beginning));
    let is_vector = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    of_libmvec || name.starts_with("_Z") && name.split("Dv").skip(1).any(is_vector)
}

/// The name of a C++ or Rust function as it is written in the source, without parameters and with them.
pub(super) fn readable(name: &str) -> [Option<String>; 2] {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return [Some(format!("{rust:#}")), None];
    }
    if !name.starts_with("_Z") || name.len() > 4096 {
        return [None, None];
    }
    let Ok(symbol) = cpp_demangle::Symbol::new(name) else { return [None, None] };
    let options = [DemangleOptions::new().no_params().no_return_type(), DemangleOptions::new().no_return_type()];
    options.map(|options| symbol.demangle_with_options(&options).ok())
}

/// The name most like this one.
pub(super) fn nearest(wanted: &str, modules: &[&Module]) -> Option<String> {
    let all = modules.iter().flat_map(|module| module.exported.iter().chain(&module.internal));
    let all = all.map(|name| readable(name)[0].clone().unwrap_or_else(|| name.clone()));
    rftrace_read::nearest(wanted, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_functions_cannot_be_caught() {
        // (name, at all, recorded at its call)
        for (name, is_caught, is_caught_early) in [
            ("malloc", true, true),
            ("dl_iterate_phdr", true, true),
            ("swapcontext", true, true),
            ("_ZN3Dvd4openEv", true, true),
            ("_ZGVbN2v_sin", true, true),
            ("setjmp", false, true),
            ("dlsym", false, true),
            ("_Unwind_Backtrace", false, true),
            ("mcount", false, false),
            ("dlvsym", false, false),
            ("__errno_location", false, false),
            ("__tls_get_addr", false, false),
            ("_dl_find_object", false, false),
            ("__tunable_get_val", false, false),
            ("getauxval", false, false),
            ("_ZGVdN4v_sin", false, false),
            ("_Z3sumDv4_d", false, false),
        ] {
            assert_eq!(why_not_caught(name, false).is_none(), is_caught, "{name}");
            assert_eq!(why_not_caught(name, true).is_none(), is_caught_early, "{name} early");
        }
    }
}
