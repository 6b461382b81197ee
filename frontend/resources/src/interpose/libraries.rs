//! The functions that load libraries and give them up: by handles, each as often as it was opened.
//!
//! `dlopen` looks whose code has called it, by its return address: a name without a slash is looked for in the search path of the caller too
//! (`DT_RUNPATH`, `DT_RPATH`), and `$ORIGIN` is where the caller is. Where that makes a difference nothing is recorded: the call is passed on with
//! the return address that it has. All others it finds as if the program itself had called, which has the same namespace.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::transmute;

use rftrace_format::resources::{Kind, Resource};

use super::calls::{Call, Missing, Told, text};
use crate::originals::{self, Original};
use crate::process;
use crate::stacks::Registers;
use crate::thread;

type Text = *const c_char;
type Handle = *mut c_void;

interpose! {
    1 (handle: Handle) -> c_int { closed(handle) } dlclose;
}

/// A function with these registers for its path and with so many arguments, that goes on as `way` says.
macro_rules! open {
    ($name:ident, $way:ident, $path:literal, $sp:literal, $bp:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                concat!(".globl rftrace_own_", stringify!($name)),
                concat!(".hidden rftrace_own_", stringify!($name)),
                concat!("rftrace_own_", stringify!($name), ":"),
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                concat!("mov rdi, ", $path),
                "mov rsi, [rsp + 24]",
                "call {way}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                concat!("mov ", $sp, ", rsp"),
                concat!("mov ", $bp, ", rbp"),
                "jmp rax",
                ".cfi_endproc",
                way = sym $way,
            )
        }
    };
}

open!(dlopen, way_of_dlopen, "rdi", "rdx", "rcx");
open!(dlmopen, way_of_dlmopen, "rsi", "rcx", "r8");

extern "C" fn way_of_dlopen(path: Text, caller: usize) -> *mut c_void {
    way(Original::dlopen, opened as *mut c_void, path, caller)
}

extern "C" fn way_of_dlmopen(path: Text, caller: usize) -> *mut c_void {
    way(Original::dlmopen, opened_in as *mut c_void, path, caller)
}

/// The function that gets the call: the original one where nothing is to be recorded, or nothing can be.
fn way(original: Original, recording: *mut c_void, path: Text, caller: usize) -> *mut c_void {
    // The program itself is always there: nothing is loaded.
    let is_passed_on = path.is_null()
        || !process::is_recorded(Resource::Library)
        || thread::keeping_errno(|| goes_by_caller(path, caller));
    let original = if is_passed_on { originals::get(original) } else { recording };
    // Where there is none, that is what the other one answers.
    if original.is_null() { recording } else { original }
}

extern "C-unwind" fn opened(path: Text, flags: c_int, sp: usize, bp: usize) -> Handle {
    record(Kind::Dlopen, path, flags, Registers { sp, bp }, || {
        let function = originals::get(Original::dlopen);
        if function.is_null() {
            return Missing::missing();
        }
        // SAFETY: a function of this name has this type; it gets the caller's arguments.
        let function = unsafe { transmute::<*mut c_void, extern "C-unwind" fn(Text, c_int) -> Handle>(function) };
        function(path, flags)
    })
}

extern "C-unwind" fn opened_in(namespace: c_long, path: Text, flags: c_int, sp: usize, bp: usize) -> Handle {
    record(Kind::Dlmopen, path, flags, Registers { sp, bp }, || {
        let function = originals::get(Original::dlmopen);
        if function.is_null() {
            return Missing::missing();
        }
        type Function = extern "C-unwind" fn(c_long, Text, c_int) -> Handle;
        // SAFETY: as above.
        let function = unsafe { transmute::<*mut c_void, Function>(function) };
        function(namespace, path, flags)
    })
}

fn record(kind: Kind, path: Text, flags: c_int, registers: Registers, original: impl FnOnce() -> Handle) -> Handle {
    let call = Call::begin(Resource::Library, registers);
    let handle = original();
    if let Some(call) = call.filter(|_| !handle.is_null()) {
        let told = || {
            let mut told = Told::only(handle as u64);
            told.with(b"filename: ").with(text(path)).with(b", flags: ").with_number(i64::from(flags));
            told
        };
        call.counted(kind, handle as u64, text(path), told);
    }
    handle
}

/// `dlclose`: whoever opens it next comes later.
fn closed(handle: Handle, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = Call::begin(Resource::Library, registers);
    let result = original();
    if let Some(call) = call.filter(|_| result == 0) {
        call.given_back(Kind::Dlclose, handle as u64, handle as u64);
    }
    result
}

/// State of the search through the modules.
struct Looking {
    caller: usize,
    /// A path without a slash.
    is_name: bool,
    /// The first module is the program.
    is_first: bool,
    /// True if the search paths of the program, and of the caller if it is in a module, are for such a name.
    program: bool,
    of_caller: Option<bool>,
    /// A library has one that holds for all that it loads.
    any_inherited: bool,
}

/// True if the result depends on the caller.
fn goes_by_caller(path: Text, caller: usize) -> bool {
    // SAFETY: there is one, and the dynamic linker reads it up to its NUL, too.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.contains(&b'$') {
        return true;
    }
    let is_name = !path.contains(&b'/');
    let mut looking =
        Looking { caller, is_name, is_first: true, program: false, of_caller: None, any_inherited: false };
    // SAFETY: the callback takes this and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut looking).cast()) };
    // Code in no module counts as the program's.
    looking.any_inherited || looking.is_name && looking.of_caller.unwrap_or(looking.program)
}

/// Looks at a module.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, looking: *mut c_void) -> c_int {
    const DT_NULL: u64 = 0;
    const DT_RPATH: u64 = 15;
    const DT_RUNPATH: u64 = 29;
    const DT_FLAGS_1: u64 = 0x6fff_fffb;
    const DF_1_NODEFLIB: u64 = 0x800;

    // SAFETY: what the dynamic linker passes, and what it was given.
    let (info, looking) = unsafe { (&*info, &mut *looking.cast::<Looking>()) };
    // SAFETY: so many headers are there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let (mut has_caller, mut has_path, mut has_inherited) = (false, false, false);
    for header in headers {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        match header.p_type {
            libc::PT_LOAD => has_caller |= (start..start + header.p_memsz as usize).contains(&looking.caller),
            libc::PT_DYNAMIC => {
                let mut entry = start as *const [u64; 2];
                loop {
                    // SAFETY: the module's own, which ends with a null.
                    let [tag, value] = unsafe { entry.read() };
                    match tag {
                        DT_NULL => break,
                        DT_RUNPATH => has_path = true,
                        DT_RPATH => (has_path, has_inherited) = (true, true),
                        DT_FLAGS_1 => has_path |= value & DF_1_NODEFLIB != 0,
                        _ => {}
                    }
                    // SAFETY: it was not the last one.
                    entry = unsafe { entry.add(1) };
                }
            }
            _ => {}
        }
    }
    if has_caller {
        looking.of_caller = Some(has_path);
    }
    match looking.is_first {
        true => looking.program = has_path,
        // Libraries loaded by this one inherit the program's, as those loaded by the program do.
        false => looking.any_inherited |= has_inherited,
    }
    looking.is_first = false;
    0
}
