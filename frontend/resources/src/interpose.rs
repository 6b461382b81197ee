//! The functions that take the place of the program's allocator's.
//!
//! Each is a jump to one with the same arguments and two more: the stack and frame pointer at its first instruction, from where its callers
//! are found. So no frame of this library is on the stack above them.
//!
//! A release is recorded before the memory is free, an allocation after it was made: whoever gets it next comes later.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;

use rftrace_format::resources::Kind;

use crate::chunks::Writing;
use crate::originals::{self, Original};
use crate::pool;
use crate::process;
use crate::stacks::{self, Registers};

type Memory = *mut c_void;

/// A function of the program's allocator, and how it is called. Where it is missing, `$none` is the answer.
macro_rules! original {
    ($original:ident, $type:ty, $none:expr, $($argument:expr),+) => {{
        let function = originals::get(Original::$original);
        if function.is_null() {
            $none
        } else {
            // SAFETY: a function of this name has this type; it gets the caller's arguments.
            let function = unsafe { transmute::<Memory, $type>(function) };
            function($($argument),+)
        }
    }};
}

/// A function that jumps to another one, with the stack and the frame pointer as further arguments in these registers.
macro_rules! with_registers {
    ($name:ident, $to:ident, $sp:literal, $bp:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(concat!("mov ", $sp, ", rsp"), concat!("mov ", $bp, ", rbp"), "jmp {to}", to = sym $to)
        }
    };
}

with_registers!(malloc, malloc_from, "rsi", "rdx");
with_registers!(valloc, valloc_from, "rsi", "rdx");
with_registers!(pvalloc, pvalloc_from, "rsi", "rdx");
with_registers!(free, free_from, "rsi", "rdx");
with_registers!(cfree, free_from, "rsi", "rdx");
with_registers!(calloc, calloc_from, "rdx", "rcx");
with_registers!(realloc, realloc_from, "rdx", "rcx");
with_registers!(memalign, memalign_from, "rdx", "rcx");
with_registers!(aligned_alloc, aligned_alloc_from, "rdx", "rcx");
with_registers!(posix_memalign, posix_memalign_from, "rcx", "r8");

/// Records memory that was given out.
#[inline(always)]
fn allocated(kind: Kind, memory: Memory, bytes: usize, registers: Registers) {
    if memory.is_null() || !process::is_recorded() {
        return;
    }
    let writing = Writing::begin(registers.sp);
    let stack = stacks::number(&writing, registers);
    if let Some(place) = writing.reserve(2) {
        place.more(1, bytes as u64, u64::from(stack));
        place.finish(kind, pool::ticks_after(), memory as u64);
    }
}

extern "C" fn malloc_from(bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(Malloc, extern "C" fn(usize) -> Memory, ptr::null_mut(), bytes);
    allocated(Kind::Malloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn valloc_from(bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(Valloc, extern "C" fn(usize) -> Memory, ptr::null_mut(), bytes);
    allocated(Kind::Valloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn pvalloc_from(bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(Pvalloc, extern "C" fn(usize) -> Memory, ptr::null_mut(), bytes);
    allocated(Kind::Pvalloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn calloc_from(n: usize, bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(Calloc, extern "C" fn(usize, usize) -> Memory, ptr::null_mut(), n, bytes);
    // Where it overflows there is no memory.
    allocated(Kind::Calloc, memory, n.wrapping_mul(bytes), Registers { sp, bp });
    memory
}

extern "C" fn memalign_from(alignment: usize, bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(Memalign, extern "C" fn(usize, usize) -> Memory, ptr::null_mut(), alignment, bytes);
    allocated(Kind::Memalign, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn aligned_alloc_from(alignment: usize, bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(AlignedAlloc, extern "C" fn(usize, usize) -> Memory, ptr::null_mut(), alignment, bytes);
    allocated(Kind::AlignedAlloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn posix_memalign_from(place: *mut Memory, alignment: usize, bytes: usize, sp: usize, bp: usize) -> c_int {
    type Function = extern "C" fn(*mut Memory, usize, usize) -> c_int;
    let result = original!(PosixMemalign, Function, libc::ENOMEM, place, alignment, bytes);
    if result == 0 {
        // SAFETY: the allocator has written there.
        allocated(Kind::PosixMemalign, unsafe { place.read() }, bytes, Registers { sp, bp });
    }
    result
}

extern "C" fn free_from(memory: Memory, sp: usize) {
    if !memory.is_null()
        && process::is_recorded()
        && let Some(place) = Writing::begin(sp).reserve(1)
    {
        place.finish(Kind::Free, pool::ticks_before(), memory as u64);
    }
    original!(Free, extern "C" fn(Memory), (), memory)
}

extern "C" fn realloc_from(old: Memory, bytes: usize, sp: usize, bp: usize) -> Memory {
    type Function = extern "C" fn(Memory, usize) -> Memory;
    if old.is_null() {
        let memory = original!(Realloc, Function, ptr::null_mut(), old, bytes);
        allocated(Kind::Realloc, memory, bytes, Registers { sp, bp });
        return memory;
    }
    // Only when it has succeeded it is known that the old memory was given back, but that was before.
    let writing = process::is_recorded().then(|| Writing::begin(sp));
    let place = writing.as_ref().and_then(|writing| writing.reserve(1));
    let before = pool::ticks_before();
    let memory = original!(Realloc, Function, ptr::null_mut(), old, bytes);
    if let Some(place) = place.filter(|_| !memory.is_null() || bytes == 0) {
        place.finish(Kind::ReallocFree, before, old as u64);
    }
    drop(writing);
    allocated(Kind::Realloc, memory, bytes, Registers { sp, bp });
    memory
}
