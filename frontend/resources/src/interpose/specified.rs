//! The functions of specifications: calls of them come here from a library that the recorder has made (`rftrace-record`), or from branches at the
//! beginnings of the functions themselves (`branched`), where these are called within their modules too. A call that passes both counts once: the
//! library is passed where the function has a branch.
//!
//! The called function is called again from here, as only then it is known what it returns. It gets all that is in registers, and as much of
//! its caller's stack as arguments may be in. What unwinds finds its way by the frame's information; nothing is to be undone here.
//!
//! A call by this library itself is passed on untouched: what is specified may be `memcpy`.

use std::arch::global_asm;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_format::resources::{Kind, MAX_DETAIL_BYTES, Resource};
use rftrace_format::specification::{BEFORE, Does, Entry, MAX_IDS, NESTED};

use super::calls::Call;
use crate::branched;
use crate::layers::{self, Layer};
use crate::machine::{self, Values};
use crate::originals;
use crate::process;
use crate::slots;
use crate::specifications;
use crate::stacks::{self, Registers};
use crate::thread;

/// The data of a function for its stub.
#[repr(C)]
pub(crate) struct Known {
    /// The function that is meant; null until it was looked up.
    original: AtomicPtr<c_void>,
    name: *const c_char,
    number: u64,
}

// SAFETY: the name is never changed.
unsafe impl Sync for Known {}

impl Known {
    /// A function by its name, which stays, and its number in the table.
    pub(crate) fn new(name: CString, number: u64) -> Self {
        Self { original: AtomicPtr::new(ptr::null_mut()), name: name.into_raw(), number }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        // SAFETY: it ends with a NUL, and stays.
        unsafe { CStr::from_ptr(self.name) }
    }

    /// Says which one is meant.
    pub(crate) fn set(&self, original: usize) {
        self.original.store(original as *mut c_void, Relaxed);
    }
}

/// Where stubs go on, with what is known of the function in r11.
pub(crate) fn specified() -> usize {
    unsafe extern "C" {
        fn rftrace_resources_specified();
    }

    rftrace_resources_specified as *const () as usize
}

/// The frame below the frame pointer while a function runs.
#[repr(C)]
struct Frame {
    vectors: [[u64; 2]; 8],
    /// rdi, rsi, rdx, rcx, r8, r9.
    integers: [u64; 6],
    /// Its lowest byte is how many vectors a function with any number of arguments gets.
    rax: u64,
    r10: u64,
    known: *const Known,
    number: u64,
    /// The caller's frame pointer.
    bp: usize,
    original: *mut c_void,
    /// So much of the caller's stack may be arguments.
    stack_bytes: usize,
    /// rax, rdx; xmm0, xmm1.
    results: [u64; 2],
    result_vectors: [[u64; 2]; 2],
    /// When it was called, and what it was to give back then; how many of these are known.
    began: u64,
    generation: u32,
    since: u32,
    released: [u64; MAX_IDS],
    n_released: usize,
    /// The call of the program's allocator that this one is in (`layers`).
    layer: Layer,
}

/// The same of a function that has come by a branch. It may rely on all registers that the called one leaves as they are.
#[repr(C)]
struct Entered {
    /// The part with the data of all calls; nothing else of it is used here.
    frame: Frame,
    r11: u64,
    /// Not 0 if the function's end is to be known.
    is_called: u64,
    /// rcx, rsi, rdi, r8, r9, r10, r11, as the function has left them.
    left: [u64; 7],
}

/// The most that is copied of the caller's stack.
const MOST_STACK_BYTES: usize = 512;
const FRAME_BYTES: usize = size_of::<Frame>().next_multiple_of(16);

/// From the frame pointer to a field.
macro_rules! at {
    ($field:ident) => {
        offset_of!(Frame, $field) as isize - FRAME_BYTES as isize
    };
}

const ENTERED_BYTES: usize = size_of::<Entered>().next_multiple_of(16);
/// Bytes that `xsave` writes for vectors and masks, header included, in the layout without compaction: up to the upper ones of AVX-512.
const VECTORS_BYTES: usize = 2752;
const VECTORS_HEADER: usize = 512;
/// Of its parts: SSE, AVX, the three of AVX-512.
const VECTORS: u64 = 0b1110_0110;

/// From the frame pointer to a field.
macro_rules! entered_at {
    (frame.$field:ident) => {
        (offset_of!(Entered, frame) + offset_of!(Frame, $field)) as isize - ENTERED_BYTES as isize
    };
    ($field:ident) => {
        offset_of!(Entered, $field) as isize - ENTERED_BYTES as isize
    };
}

/// Keeps the integer registers of arguments, or has them as they were.
macro_rules! arguments {
    (save) => {
        concat!(
            "mov [rbp + {integers}], rdi\n",
            "mov [rbp + {integers} + 8], rsi\n",
            "mov [rbp + {integers} + 16], rdx\n",
            "mov [rbp + {integers} + 24], rcx\n",
            "mov [rbp + {integers} + 32], r8\n",
            "mov [rbp + {integers} + 40], r9\n",
        )
    };
    (load) => {
        concat!(
            "mov rdi, [rbp + {integers}]\n",
            "mov rsi, [rbp + {integers} + 8]\n",
            "mov rdx, [rbp + {integers} + 16]\n",
            "mov rcx, [rbp + {integers} + 24]\n",
            "mov r8, [rbp + {integers} + 32]\n",
            "mov r9, [rbp + {integers} + 40]\n",
        )
    };
}

/// The caller's arguments on the stack once more, which are so far above the frame pointer.
macro_rules! copied_stack {
    ($above:literal) => {
        concat!(
            "mov rcx, [rbp + {stack_bytes}]\n",
            "sub rsp, rcx\n",
            "lea rsi, [rbp + ",
            $above,
            "]\n",
            "mov rdi, rsp\n",
            "rep movsb\n",
        )
    };
}

/// Keeps all vectors, at the stack pointer.
macro_rules! saved_vectors {
    () => {
        concat!(
            // xrstor wants the rest of the header to be 0.
            "lea rdi, [rsp + {header}]\n",
            "xor eax, eax\n",
            "mov ecx, 8\n",
            "rep stosq\n",
            "mov eax, {vectors}\n",
            "xor edx, edx\n",
            "xsave [rsp]\n",
        )
    };
}

/// Has them as they were.
macro_rules! restored_vectors {
    () => {
        "mov eax, {vectors}\nxor edx, edx\nxrstor [rsp]\n"
    };
}

global_asm!(
    // Where a branch leads to: on the stack are the function's number, where it goes on, its return address. All registers are as its caller
    // has left them, and are kept.
    ".text",
    ".globl rftrace_resources_entered",
    ".hidden rftrace_resources_entered",
    ".type rftrace_resources_entered, @function",
    "rftrace_resources_entered:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 24",
    "push rbp",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset rbp, -32",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, {all_bytes}",
    "and rsp, -64",
    "mov [rbp + {rax}], rax",
    "mov [rbp + {r10}], r10",
    "mov [rbp + {r11}], r11",
    arguments!(save),
    "mov rax, [rbp]",
    "mov [rbp + {bp}], rax",
    "mov rax, [rbp + 8]",
    "mov [rbp + {number}], rax",
    saved_vectors!(),
    "lea rdi, [rbp - {entered_bytes}]",
    "lea rsi, [rbp + 24]",
    "call {entered}",
    "mov [rbp + {is_called}], rax",
    restored_vectors!(),
    // Arguments on the stack, if the function is called from here. The vectors need no place while the function runs: it may call itself often.
    "lea rsp, [rbp - {entered_bytes}]",
    "and rsp, -16",
    copied_stack!("32"),
    "cmp qword ptr [rbp + {is_called}], 0",
    arguments!(load),
    "mov rax, [rbp + {rax}]",
    "mov r10, [rbp + {r10}]",
    "mov r11, [rbp + {r11}]",
    "jne 4f",
    // Nothing is to be known of its end. Below the stack pointer the word stays: no handler of a signal writes there.
    ".cfi_remember_state",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 24",
    ".cfi_restore rbp",
    "lea rsp, [rsp + 16]",
    ".cfi_def_cfa_offset 8",
    "jmp [rsp - 8]",
    "4:",
    ".cfi_restore_state",
    "call [rbp + 16]",
    "mov [rbp + {results}], rax",
    "mov [rbp + {results} + 8], rdx",
    "mov [rbp + {left}], rcx",
    "mov [rbp + {left} + 8], rsi",
    "mov [rbp + {left} + 16], rdi",
    "mov [rbp + {left} + 24], r8",
    "mov [rbp + {left} + 32], r9",
    "mov [rbp + {left} + 40], r10",
    "mov [rbp + {left} + 48], r11",
    "lea rsp, [rbp - {all_bytes}]",
    "and rsp, -64",
    saved_vectors!(),
    "lea rdi, [rbp - {entered_bytes}]",
    "lea rsi, [rbp + 24]",
    "call {after}",
    restored_vectors!(),
    "mov rax, [rbp + {results}]",
    "mov rdx, [rbp + {results} + 8]",
    "mov rcx, [rbp + {left}]",
    "mov rsi, [rbp + {left} + 8]",
    "mov rdi, [rbp + {left} + 16]",
    "mov r8, [rbp + {left} + 24]",
    "mov r9, [rbp + {left} + 32]",
    "mov r10, [rbp + {left} + 40]",
    "mov r11, [rbp + {left} + 48]",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 24",
    ".cfi_restore rbp",
    "lea rsp, [rsp + 16]",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size rftrace_resources_entered, . - rftrace_resources_entered",
    all_bytes = const ENTERED_BYTES + VECTORS_BYTES,
    entered_bytes = const ENTERED_BYTES,
    header = const VECTORS_HEADER,
    vectors = const VECTORS,
    rax = const entered_at!(frame.rax),
    r10 = const entered_at!(frame.r10),
    r11 = const entered_at!(r11),
    integers = const entered_at!(frame.integers),
    bp = const entered_at!(frame.bp),
    number = const entered_at!(frame.number),
    stack_bytes = const entered_at!(frame.stack_bytes),
    results = const entered_at!(frame.results),
    is_called = const entered_at!(is_called),
    left = const entered_at!(left),
    entered = sym entered,
    after = sym after,
);

global_asm!(
    // r11: what is known of the function. All else is as its caller has left it, and the stack pointer is a multiple of 16 and 8 more.
    ".text",
    ".globl rftrace_resources_specified",
    ".type rftrace_resources_specified, @function",
    ".hidden _end",
    "rftrace_resources_specified:",
    ".cfi_startproc",
    // Is the caller in this library? Nothing that had to be relocated may be needed for that.
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "mov rax, [rsp + 16]",
    "lea rcx, [rip + __ehdr_start]",
    "cmp rax, rcx",
    "jb 2f",
    "lea rcx, [rip + _end]",
    "cmp rcx, rax",
    "2:",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "jb 3f",
    "cmp qword ptr [r11], 0",
    "je 3f",
    "jmp [r11]",
    "3:",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, {frame_bytes}",
    "mov [rbp + {known}], r11",
    "mov [rbp + {rax}], rax",
    "mov [rbp + {r10}], r10",
    arguments!(save),
    "movups [rbp + {vectors}], xmm0",
    "movups [rbp + {vectors} + 16], xmm1",
    "movups [rbp + {vectors} + 32], xmm2",
    "movups [rbp + {vectors} + 48], xmm3",
    "movups [rbp + {vectors} + 64], xmm4",
    "movups [rbp + {vectors} + 80], xmm5",
    "movups [rbp + {vectors} + 96], xmm6",
    "movups [rbp + {vectors} + 112], xmm7",
    "mov rax, [rbp]",
    "mov [rbp + {bp}], rax",
    "mov rdi, rsp",
    "lea rsi, [rbp + 8]",
    "call {before}",
    // Arguments on the stack, if the function is called from here.
    copied_stack!("16"),
    "test eax, eax",
    "movups xmm0, [rbp + {vectors}]",
    "movups xmm1, [rbp + {vectors} + 16]",
    "movups xmm2, [rbp + {vectors} + 32]",
    "movups xmm3, [rbp + {vectors} + 48]",
    "movups xmm4, [rbp + {vectors} + 64]",
    "movups xmm5, [rbp + {vectors} + 80]",
    "movups xmm6, [rbp + {vectors} + 96]",
    "movups xmm7, [rbp + {vectors} + 112]",
    arguments!(load),
    "mov rax, [rbp + {rax}]",
    "mov r10, [rbp + {r10}]",
    "mov r11, [rbp + {original}]",
    "jne 4f",
    // Nothing is to be known of its end: it takes this frame's place.
    ".cfi_remember_state",
    "leave",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "jmp r11",
    "4:",
    ".cfi_restore_state",
    "call r11",
    "mov [rbp + {results}], rax",
    "mov [rbp + {results} + 8], rdx",
    "movups [rbp + {result_vectors}], xmm0",
    "movups [rbp + {result_vectors} + 16], xmm1",
    "lea rdi, [rbp - {frame_bytes}]",
    "lea rsi, [rbp + 8]",
    "call {after}",
    "mov rax, [rbp + {results}]",
    "mov rdx, [rbp + {results} + 8]",
    "movups xmm0, [rbp + {result_vectors}]",
    "movups xmm1, [rbp + {result_vectors} + 16]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "ret",
    ".cfi_endproc",
    ".size rftrace_resources_specified, . - rftrace_resources_specified",
    frame_bytes = const FRAME_BYTES,
    vectors = const at!(vectors),
    known = const at!(known),
    bp = const at!(bp),
    rax = const at!(rax),
    r10 = const at!(r10),
    integers = const at!(integers),
    original = const at!(original),
    stack_bytes = const at!(stack_bytes),
    results = const at!(results),
    result_vectors = const at!(result_vectors),
    before = sym before,
    after = sym after,
);

/// Looks up the function, once. This library must not need it for that.
#[inline(always)]
fn original(known: &Known) -> *mut c_void {
    let found = known.original.load(Relaxed);
    if !found.is_null() {
        return found;
    }
    // Functions recorded without a specification are so by this library's own function of that name, which goes on to the other.
    // SAFETY: a name in the library with stubs, which stays.
    let own = unsafe { originals::own(known.name, u32::MAX) }.map(|own| own as *mut c_void);
    // SAFETY: as above; that library lies before this one, so the next function is none of its.
    let found = own.unwrap_or_else(|| unsafe { originals::next(known.name) });
    // Only what the recorder has found in a library is caught. If that is not loaded yet somebody calls too early.
    let found = if found.is_null() { missing as *mut c_void } else { found };
    if found != missing as *mut c_void {
        known.original.store(found, Relaxed);
    }
    found
}

/// The answer in place of a missing function.
extern "C" fn missing() -> usize {
    <c_int as super::calls::Missing>::missing() as usize
}

/// Called with the frame before the function, and where its return address is. Returns whether its end is to be known.
extern "C" fn before(frame: &mut Frame, sp: usize) -> u32 {
    // SAFETY: as the stub has passed it.
    let known = unsafe { &*frame.known };
    frame.original = thread::keeping_errno(|| original(known));
    frame.number = known.number;
    frame.stack_bytes = 0;
    // Where the function has a branch that one comes to the same.
    if branched::has(frame.original as usize) {
        return 0;
    }
    u32::from(has_begun(frame, sp))
}

/// The same with the frame of one that has come by a branch.
extern "C" fn entered(frame: &mut Entered, sp: usize) -> u64 {
    frame.frame.stack_bytes = 0;
    u64::from(has_begun(&mut frame.frame, sp))
}

/// Begins a call. Returns whether its end is to be known.
fn has_begun(frame: &mut Frame, sp: usize) -> bool {
    let registers = Registers { sp, bp: frame.bp };
    // Of this library's own calls by the other one only the first comes here.
    if is_own(registers) {
        return false;
    }
    let Some((entry, call)) = begin(frame.number as usize, registers) else { return false };
    let Some(layer) = layers::enter(&entry, sp) else { return false };
    frame.layer = layer;
    thread::keeping_errno(|| {
        (frame.began, frame.generation, frame.since) = (call.began(), call.generation(), call.since());
        let values = frame.values(sp, None);
        let released = Released::of(&entry, &values);
        if entry.has(BEFORE) {
            record(frame.number, &entry, call, &values, released);
            return false;
        }
        (frame.released, frame.n_released) = (released.ids, released.n_ids);
        // The words above the return address belong to the caller, and are there as long as the stack is.
        let end = stacks::readable_end(sp + 8);
        frame.stack_bytes = end.saturating_sub(sp + 8).min(MOST_STACK_BYTES) & !15;
        true
    })
}

/// Called with the frame behind the function.
extern "C" fn after(frame: &mut Frame, sp: usize) {
    let Some(entry) = specifications::function(frame.number as usize) else { return };
    layers::leave(&entry, frame.layer);
    thread::keeping_errno(|| {
        let call = Call::again(frame.began, Registers { sp, bp: frame.bp }, frame.generation, frame.since);
        let released = Released { ids: frame.released, n_ids: frame.n_released };
        record(frame.number, &entry, call, &frame.values(sp, Some(frame.results[0])), released);
    });
}

/// True if the caller is in this library.
fn is_own(registers: Registers) -> bool {
    // SAFETY: there the return address is.
    slots::is_own(unsafe { *(registers.sp as *const usize) })
}

/// Begins a call, where such are recorded.
fn begin(number: usize, registers: Registers) -> Option<(Entry<'static>, Call)> {
    // The first call may be what finds out what is recorded.
    if !process::is_known() {
        process::is_recorded(Resource::Memory);
    }
    let entry = specifications::function(number)?;
    Some((entry, Call::specified(entry.resource() as usize, registers)?))
}

impl Frame {
    fn values(&self, sp: usize, result: Option<u64>) -> Values<'_> {
        Values { integers: &self.integers, stack: sp + 8, result: result.unwrap_or(0) }
    }
}

/// The ids that a function is to give back.
struct Released {
    ids: [u64; MAX_IDS],
    n_ids: usize,
}

impl Released {
    fn of(entry: &Entry<'_>, values: &Values<'_>) -> Self {
        let mut released = Self { ids: [0; MAX_IDS], n_ids: 0 };
        match entry.does() {
            Does::Release => entry.ids().for_each(|steps| released.add(steps, values)),
            Does::Reallocate => released.add(entry.old(), values),
            Does::Allocate | Does::Note => {}
        }
        released
    }

    fn add(&mut self, steps: &[u8], values: &Values<'_>) {
        if let (Some(place), Some(id)) = (self.ids.get_mut(self.n_ids), machine::run(steps, values)) {
            *place = id;
            self.n_ids += 1;
        }
    }
}

/// Records what a call has done.
fn record(number: u64, entry: &Entry<'_>, call: Call, values: &Values<'_>, released: Released) {
    // A test that cannot be evaluated counts as failed.
    if !call.is_recorded() || !entry.failed().is_empty() && machine::run(entry.failed(), values) != Some(0) {
        return;
    }
    let mut buffer = [0u8; MAX_DETAIL_BYTES];
    let n_bytes = arguments(entry, values, &mut buffer);
    let text = &buffer[..n_bytes];
    let (resource, is_nested) = (entry.resource(), entry.has(NESTED));
    for &id in &released.ids[..released.n_ids] {
        // A realloc of nothing gives nothing back.
        if entry.does() != Does::Reallocate || id != 0 {
            call.specified_given_back(number, resource, id, is_nested);
        }
    }
    if entry.does() == Does::Release {
        return;
    }
    let size = machine::run(entry.size(), values).unwrap_or(0);
    if entry.does() == Does::Note {
        let id = entry.ids().next().and_then(|steps| machine::run(steps, values)).unwrap_or(0);
        call.specified_taken(Kind::SpecifiedNote, number, resource, (id, size), text, true);
        return;
    }
    // A realloc to nothing may give nothing out.
    let is_one = |id: &u64| *id != 0 || !layers::has(entry);
    for id in entry.ids().filter_map(|steps| machine::run(steps, values)).filter(is_one) {
        call.specified_taken(Kind::SpecifiedAllocation, number, resource, (id, size), text, is_nested);
    }
}

/// Writes the arguments that are told: `path: /etc/hosts, flags: 2`.
fn arguments(entry: &Entry<'_>, values: &Values<'_>, buffer: &mut [u8]) -> usize {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        for (place, byte) in buffer[at.min(MAX_DETAIL_BYTES)..].iter_mut().zip(bytes) {
            *place = *byte;
            at += 1;
        }
    };
    for (place, argument) in entry.arguments().enumerate() {
        let Some(value) = machine::run(argument.steps, values) else { continue };
        put(if place > 0 { b", " } else { b"" });
        put(argument.name);
        put(b": ");
        if argument.is_text {
            let mut text = [0; MAX_DETAIL_BYTES];
            let n_bytes = machine::text(value, &mut text);
            put(&text[..n_bytes]);
        } else {
            let mut digits = [0; 20];
            put(machine::digits(value as i64, &mut digits));
        }
    }
    at
}
