//! The unwinder of a program that cannot load a library, and its knowledge of the tracer's code.

use std::mem::offset_of;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use nix::libc::{self, pid_t};
use rftrace::abi::Outside as Told;
use rftrace_frontend::patch::{Libgcc, Llvm, Unnamed, UnnamedUnwinder};

use super::borrowed::Borrowed;
use super::headers::Headers;
use super::image::Image;
use super::place::registrars;
use super::process::{Map, Process};
use super::stubs::Stubs;

/// Functions of a program that throw exceptions and take backtraces.
#[derive(Debug)]
pub(crate) struct Unwinder {
    knows: Knows,
    /// Functions called by T's landing pad.
    functions: [(&'static str, u64); 3],
    /// Code that takes its lock, if the code has no names.
    locking: Option<Range<u64>>,
}

/// Functions called by T's landing pad.
const CALLED: [&str; 3] = ["_Unwind_Resume", "_Unwind_SetGR", "_Unwind_SetIP"];

fn called(addresses: [u64; 3]) -> [(&'static str, u64); 3] {
    std::array::from_fn(|idx| (CALLED[idx], addresses[idx]))
}

/// How an unwinder comes to know of code.
#[derive(Debug)]
enum Knows {
    /// There is none.
    Nothing,
    /// It is told: libgcc's `__register_frame_info`.
    ByRegistrar(u64),
    /// It asks the C library.
    ByHeaders(Headers),
}

impl Unwinder {
    /// The unwinder of a process. `unnamed`: the facts on a program without symbol table.
    ///
    /// # Errors
    ///
    /// It cannot know of the tracer's code, so exceptions could not pass there.
    pub(crate) fn of(process: &Process, maps: &[Map], unnamed: Option<&Unnamed>) -> Result<Self> {
        const REGISTRAR: &str = "__register_frame_info";
        const OF_LLVM: [&str; 2] = ["__unw_add_dynamic_fde", "__unw_step"];
        const OF_ANY: [&str; 2] = ["_Unwind_RaiseException", "_Unwind_Backtrace"];

        let names = || [&CALLED[..], &[REGISTRAR], &OF_LLVM, &OF_ANY].into_iter().flatten().map(|&name| (name, name));
        let found: Vec<(&str, Range<u64>)> =
            process.modules(maps).iter().flat_map(|module| module.named(names())).collect();
        let find = |name: &str| found.iter().find(|(its, _)| *its == name).map(|(_, range)| range.start);
        let functions = CALLED.map(|name| (name, find(name).unwrap_or(0)));
        let [has_other, has_any] = [OF_LLVM, OF_ANY].map(|names| names.into_iter().any(|name| find(name).is_some()));
        let is_static = process.auxiliary(libc::AT_BASE).unwrap_or(0) == 0;
        match unnamed.map(Unnamed::unwinder) {
            None | Some(UnnamedUnwinder::Nothing) => {}
            Some(UnnamedUnwinder::Libgcc(libgcc)) if is_static => return Ok(Self::libgcc(libgcc)),
            Some(UnnamedUnwinder::Llvm(llvm)) if is_static => return Ok(Self::llvm(llvm, Headers::find(process)?)),
            Some(_) => {
                bail!(
                    "process {} has no symbol table, and rftrace cannot find its unwinder for exceptions: without names it finds only \
                     libgcc's at a fixed address, and LLVM's with its messages, both linked statically; keep the symbol table (no -s and strip)",
                    process.pid
                );
            }
        }
        let knows = match find(REGISTRAR).filter(|_| !has_other) {
            Some(registrar) => Knows::ByRegistrar(registrar),
            None if !has_any => Knows::Nothing,
            None if is_static => Knows::ByHeaders(Headers::find(process)?),
            None => {
                bail!(
                    "cannot add the tracer to the unwinder of process {}, which can throw exceptions: rftrace supports libgcc's unwinder with \
                     the names of its functions, and LLVM's in programs that are linked statically with musl",
                    process.pid
                );
            }
        };
        Ok(Self { knows, functions, locking: None })
    }

    /// libgcc's without names.
    fn libgcc(libgcc: &Libgcc) -> Self {
        let Libgcc { resume, set_register, set_address, registrar, locking, .. } = libgcc.clone();
        let functions = called([resume, set_register, set_address]);
        Self { knows: Knows::ByRegistrar(registrar), functions, locking: Some(locking) }
    }

    /// LLVM's without names.
    fn llvm(&Llvm { resume, set_register, set_address, .. }: &Llvm, headers: Headers) -> Self {
        let functions = called([resume, set_register, set_address]);
        Self { knows: Knows::ByHeaders(headers), functions, locking: None }
    }

    /// Code that takes its lock, if it is told.
    pub(crate) fn locking(&self, process: &Process, maps: &[Map]) -> Vec<Range<u64>> {
        match self.knows {
            Knows::ByRegistrar(_) => registrars(process, maps, true).into_iter().chain(self.locking.clone()).collect(),
            Knows::Nothing | Knows::ByHeaders(_) => Vec::new(),
        }
    }

    /// The lowest address for the tracer.
    pub(crate) fn lowest(&self) -> u64 {
        if let Knows::ByHeaders(headers) = &self.knows { headers.lowest() } else { 0 }
    }

    pub(crate) fn function(&self, name: &str) -> u64 {
        self.functions.iter().find(|(its, _)| *its == name).map_or(0, |&(_, address)| address)
    }

    /// True if it asks the C library for its knowledge.
    pub(crate) fn asks_for_headers(&self) -> bool {
        matches!(self.knows, Knows::ByHeaders(_))
    }

    /// Has it know of the tracer's code and of stubs, if there is one, and it does not.
    pub(crate) fn tell(
        &self,
        thread: &mut Borrowed<'_>,
        process: &Process,
        image: &Image,
        late: &mut Vec<pid_t>,
    ) -> Result<()> {
        let stubs = Stubs::all(process, &process.maps()?)?;
        let registrar = match &self.knows {
            Knows::Nothing => return Ok(()),
            Knows::ByHeaders(headers) => return headers.tell(thread, process, image, &stubs, late),
            &Knows::ByRegistrar(registrar) => registrar,
        };
        if image.outside(process, offset_of!(Told, is_registered)) as u32 == 0 {
            let information = image.unwind_information().context("the tracer lacks its unwind information")?;
            let room = image.told()? + offset_of!(Told, registration) as u64;
            thread.call(registrar, &[information, room])?;
            process.write(image.told()? + offset_of!(Told, is_registered) as u64, &1u32.to_le_bytes())?;
        }
        stubs.iter().try_for_each(|stubs| stubs.tell(thread, process, registrar))
    }
}
