//! The program to record: its path, and whether it can be recorded.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::AccessFlags;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};
use rftrace_format::opener::{self, MOST_PROGRAM};
use rftrace_format::recording::MUSL;
use rftrace_frontend::patchable_entries;

use super::processors::Processor;
use super::sys;

/// Returns the program's path, as a shell would find it.
pub fn find(name: &OsStr) -> Result<PathBuf> {
    let path = Path::new(name);
    if !name.as_encoded_bytes().contains(&b'/') {
        return which::which(name).map_err(|_| {
            let here = if path.is_file() { format!("; did you mean ./{}?", path.display()) } else { String::new() };
            anyhow!("there is no program {} in PATH{here}", path.display())
        });
    }
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("there is no program {}", path.display()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        Ok(meta) if meta.is_dir() => bail!("{} is a directory, not a program", path.display()),
        // `which` needs the path of the working directory, which may be deleted.
        Ok(_) if nix::unistd::eaccess(path, AccessFlags::X_OK).is_err() => {
            bail!("{} is not executable: make it so with chmod +x, or name the compiled program", path.display())
        }
        Ok(_) => Ok(path.to_owned()),
    }
}

/// The way in which the tracer comes into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The dynamic linker preloads a library.
    Preloaded,
    /// Nothing can be preloaded, so the tracer is put into the program from outside.
    Outside,
}

/// The parts of a program to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The calls of the tracer.
    Calls,
    /// Functions that need not call the tracer, with branches at their beginnings.
    Functions,
    /// Calls of library functions, which a program without libraries has not.
    LibraryCalls,
    /// Resources, whose functions the library replaces.
    Resources,
}

/// Returns the way to record the program. The error has the remedy if there is none.
pub fn check(path: &Path, recorded: Recorded) -> Result<Way> {
    let shown = path.display();
    if let Some(rights) = foreign_rights(path)? {
        bail!(
            "{shown} {rights}: the system preloads no library into such programs; record a copy of the file without \
             these rights"
        );
    }
    let data = opener::read(path, MOST_PROGRAM).with_context(|| format!("cannot read {shown}"))?;
    if let Some(rest) = data.strip_prefix(b"#!") {
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        bail!(
            "{shown} is a script for `{}`: record the program that it starts, or all its programs with --force",
            String::from_utf8_lossy(line).trim()
        );
    }
    if !data.starts_with(&elf::ELFMAG) {
        bail!("{shown} is not an ELF program");
    }
    let own = Processor::own().context(
        "rftrace record does not support this machine; on riscv64, link the tracer into the program \
         (https://github.com/hermit-os/rftrace/blob/main/docs/riscv64.md)",
    )?;
    let unfit = || format!("{shown} is not a program for {} Linux, and this rftrace records no others", own.name);
    let header = elf::FileHeader64::<Endianness>::parse(&*data).ok().with_context(unfit)?;
    let machine = header.e_machine(header.endian().with_context(unfit)?);
    if machine != own.machine {
        match Processor::of_machine(machine) {
            Some(other) => bail!(
                "{shown} is a program for {}, and this rftrace records programs for {}: use an rftrace built for {0}, \
                 on such a machine or in an emulator (https://github.com/hermit-os/rftrace/blob/main/docs/aarch64.md)",
                other.name,
                own.name
            ),
            None if machine == elf::EM_RISCV => bail!(
                "{}; on riscv64, link the tracer into the program \
                 (https://github.com/hermit-os/rftrace/blob/main/docs/riscv64.md)",
                unfit()
            ),
            None => bail!("{}", unfit()),
        }
    }
    let linker = interpreter(header, &data).with_context(unfit)?;
    let file = object::File::parse(&*data).with_context(|| format!("cannot read {shown}"))?;
    let mut names = file.symbols().chain(file.dynamic_symbols()).filter_map(|symbol| symbol.name().ok());
    if names.any(|name| name.starts_with("rftrace_backend_init_")) {
        bail!(
            "{shown} contains rftrace itself (the crates `rftrace` and `rftrace-frontend`), so its calls do not reach \
             this command: run it without `rftrace record`, and it saves its own trace; or remove the crates"
        );
    }
    // Such a program would not even begin with the library: its linker does not load libraries for the other C library.
    let is_musl = linker.is_some_and(|linker| linker.windows(MUSL.len()).any(|part| part == MUSL));
    let has_hook = || {
        let defined = file.symbols().filter(|symbol| symbol.is_definition());
        defined.filter_map(|symbol| symbol.name().ok()).any(|name| own.hooks.contains(&name))
    };
    if cfg!(attaching) && (is_musl || linker.is_none()) {
        // The look-up reports anything missing there.
        let can_be = match recorded {
            Recorded::Calls => is_musl || has_hook(),
            Recorded::Functions => true,
            Recorded::LibraryCalls | Recorded::Resources => false,
        };
        if can_be {
            return Ok(Way::Outside);
        }
    }
    if linker.is_none() {
        match recorded {
            Recorded::LibraryCalls => {
                bail!("{shown} is linked statically, so it has no library calls: leave out --libcalls")
            }
            Recorded::Resources => bail!(
                "{shown} is linked statically, and resources are recorded only of programs that are linked dynamically: link it so"
            ),
            Recorded::Calls | Recorded::Functions => {}
        }
        let hooks = if cfg!(attaching) {
            "build it with -pg or -mfentry and a symbol table (no -s, no strip), or record all its functions with -P \
             '*'. Or link it"
        } else {
            "link it"
        };
        bail!(
            "{shown} is linked statically, so it loads no tracer: {hooks} dynamically, or let it record itself:\n  \
             Rust: extern crate rftrace as _;                                   // Cargo.toml: rftrace, rftrace-frontend\n        \
             let tracer = rftrace_frontend::Config::new().install()?; tracer.enable();  // and tracer.save()? at its end\n  \
             C: rftrace_init, rftrace_enable, rftrace_dump_full_uftrace \
             (https://github.com/hermit-os/rftrace/blob/main/docs/library.md#in-a-c-program)"
        );
    }
    if is_musl {
        bail!(
            "{shown} uses musl as its C library, and the tracer needs the GNU C library: build the program for that \
             (Rust: --target {}-unknown-linux-gnu)",
            own.arch
        );
    }
    if recorded == Recorded::Calls && !can_call_tracer(path, &file, own) {
        let hook = own.hooks[0];
        let arch = own.arch;
        let room = own.room;
        let sleds = if own.has_all { "; clang: -fxray-instrument -fxray-instruction-threshold=1" } else { "" };
        bail!(
            "{shown} does not call the tracer. Build it with calls of `{hook}`:\n  \
             Rust: RUSTFLAGS=\"-Z instrument-mcount\" cargo +nightly build --target {arch}-unknown-linux-gnu\n        \
             or, with all of this: cargo rftrace run\n  \
             C, C++: add -pg to the flags of compiler and linker, or -fpatchable-function-entry={room} to those of the compiler{sleds}\n\
             Or record it as it is, with branches at the beginnings of its functions: -P '*'; only its calls of library functions: --libcalls\n\
             If only its plugins or its child programs call the tracer: --force"
        );
    }
    Ok(Way::Preloaded)
}

/// Returns true if the program's functions call the tracer, or have room for a call.
pub fn calls_tracer(path: &Path) -> Result<bool> {
    let shown = path.display();
    let data = opener::read(path, MOST_PROGRAM).with_context(|| format!("cannot read {shown}"))?;
    let file = object::File::parse(&*data).with_context(|| format!("cannot read {shown}"))?;
    let own = Processor::own().context("rftrace record does not support this machine")?;
    Ok(can_call_tracer(path, &file, own))
}

/// Returns advice for recording arguments, if the program's functions call the tracer at a place where arguments are
/// unknown.
///
/// # Errors
///
/// The file cannot be read.
pub fn without_arguments(path: &Path) -> Result<Option<String>> {
    let Some(own) = Processor::own().filter(|own| !own.has_arguments_at_calls) else { return Ok(None) };
    Ok((calls_tracer(path)? && patchable_entries(path) == 0).then(|| {
        let Processor { name, room, .. } = own;
        format!(
            "on {name} rftrace records arguments only of functions with room for a branch, and only results of \
             others: build with -fpatchable-function-entry={room} in place of -pg (C, C++), or cargo rftrace \
             --hooks=patchable (Rust)"
        )
    }))
}

fn can_call_tracer(path: &Path, file: &object::File<'_>, own: &Processor) -> bool {
    let mut imports = file.dynamic_symbols().filter(|symbol| symbol.is_undefined()).filter_map(|s| s.name().ok());
    imports.any(|name| own.hooks.contains(&name)) || patchable_entries(path) > 0
}

/// A sanitizer in a program, and its file.
#[derive(Debug)]
pub struct Sanitizer {
    /// The sanitizer's name.
    pub name: &'static str,
    /// The compiler option that enables it: `-fsanitize=address`.
    pub option: String,
    /// The path of the program, or of a library that is loaded with it.
    pub file: PathBuf,
}

/// Returns the sanitizer in a program or one of its libraries that replaces functions of the C library: its runtime is
/// a library, or is linked in.
///
/// # Errors
///
/// A file cannot be read.
pub fn sanitizer(program: &Path) -> Result<Option<Sanitizer>> {
    /// In names of libraries and functions, in options, and in its own words.
    const KNOWN: [(&str, &str, &str); 5] = [
        ("asan", "address", "AddressSanitizer"),
        ("tsan", "thread", "ThreadSanitizer"),
        ("msan", "memory", "MemorySanitizer"),
        ("lsan", "leak", "LeakSanitizer"),
        ("hwasan", "hwaddress", "HWAddressSanitizer"),
    ];

    let found = |(_, option, name): (_, &str, _), file: &Path| {
        Some(Sanitizer { name, option: format!("-fsanitize={option}"), file: file.to_owned() })
    };
    for library in libraries(program)? {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        let rest = name.strip_prefix("libclang_rt.").or_else(|| name.strip_prefix("lib")).unwrap_or_default();
        let short = rest.split(['.', '-', '_']).next().unwrap_or_default();
        if let Some(known) = KNOWN.into_iter().find(|known| known.0 == short) {
            return Ok(found(known, &library));
        }
    }
    let data = opener::read(program, MOST_PROGRAM).with_context(|| format!("cannot read {}", program.display()))?;
    let Ok(file) = object::File::parse(&*data) else { return Ok(None) };
    let symbols = || file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition());
    let mut has_allocator = false;
    for name in symbols().filter_map(|symbol| symbol.name().ok()) {
        has_allocator |= name == "malloc";
        let short = name.strip_prefix("__").and_then(|name| name.strip_suffix("_init"));
        if let Some(known) = KNOWN.into_iter().find(|known| Some(known.0) == short) {
            return Ok(found(known, program));
        }
    }
    // Without names it is known by the variable its runtime reads.
    let reads = |short: &str| {
        let variable = format!("\0{}_OPTIONS\0", short.to_uppercase());
        data.windows(variable.len()).any(|bytes| bytes == variable.as_bytes())
    };
    let known = KNOWN.into_iter().find(|known| has_allocator && reads(known.0));
    Ok(known.and_then(|known| found(known, program)))
}

/// The libraries loaded with a program, as its dynamic linker lists them. Nothing of the program runs for this.
///
/// # Errors
///
/// The program cannot be read, or its dynamic linker does not run.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let Some(linker) = linker(program)? else { return Ok(Vec::new()) };
    let listed = Command::new(&linker).arg("--list").arg(program).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let listed =
        listed.with_context(|| format!("cannot list the libraries of the program with {}", linker.display()))?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let paths = listed.lines().filter_map(|line| {
        // `libc.so.6 => /lib/libc.so.6 (0x…)`, or without an arrow.
        let line = line.trim();
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        let path = Path::new(path.rsplit_once(" (").map_or(path, |(path, _)| path));
        (path.is_absolute() && path.is_file()).then(|| path.to_owned())
    });
    Ok(paths.collect())
}

/// The dynamic linker named by a program.
fn linker(program: &Path) -> Result<Option<PathBuf>> {
    let data = opener::read(program, MOST_PROGRAM).with_context(|| format!("cannot read {}", program.display()))?;
    let Ok(header) = elf::FileHeader64::<Endianness>::parse(&*data) else { return Ok(None) };
    Ok(interpreter(header, &data)?.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned())))
}

/// The path of it.
fn interpreter<'d>(header: &elf::FileHeader64<Endianness>, data: &'d [u8]) -> object::Result<Option<&'d [u8]>> {
    let endian = header.endian()?;
    let mut headers = header.program_headers(endian, data)?.iter();
    Ok(headers.find_map(|one| one.interpreter(endian, data).ok()?))
}

/// The rights of the program beyond those of its starter, if there are such.
fn foreign_rights(path: &Path) -> Result<Option<String>> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let meta = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(if meta.mode() & 0o4000 != 0 && meta.uid() != user.as_raw() {
        Some(format!("runs as user {} (setuid)", meta.uid()))
    } else if meta.mode() & 0o2000 != 0 && meta.gid() != group.as_raw() {
        Some(format!("runs with the rights of group {} (setgid)", meta.gid()))
    } else if !user.is_root() && sys::has_capabilities(path) {
        Some("has capabilities (setcap)".to_owned())
    } else {
        None
    })
}
