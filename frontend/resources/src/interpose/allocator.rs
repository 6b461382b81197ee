//! The functions of the program's allocator.
//!
//! A release is recorded before the memory is free, an allocation after it was made: whoever gets it next comes later.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;

use rftrace_format::resources::{Kind, Resource};

use crate::chunks;
use crate::originals::{self, Original};
use crate::pool;
use crate::process;
use crate::stacks::{self, Registers};
use crate::thread;

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

with_registers!(malloc, malloc_from, 1);
with_registers!(valloc, valloc_from, 1);
with_registers!(pvalloc, pvalloc_from, 1);
with_registers!(free, free_from, 1);
with_registers!(cfree, free_from, 1);
with_registers!(calloc, calloc_from, 2);
with_registers!(realloc, realloc_from, 2);
with_registers!(memalign, memalign_from, 2);
with_registers!(aligned_alloc, aligned_alloc_from, 2);
with_registers!(posix_memalign, posix_memalign_from, 3);

#[inline(always)]
fn is_recorded() -> bool {
    process::is_recorded(Resource::Memory)
}

/// Records memory that was given out.
#[inline(always)]
fn allocated(kind: Kind, memory: Memory, bytes: usize, registers: Registers) {
    if memory.is_null() || !is_recorded() {
        return;
    }
    let thread = thread::current();
    let stack = stacks::number(thread, registers);
    chunks::write_allocation(thread, kind, memory as u64, bytes as u64, stack);
}

extern "C" fn malloc_from(bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(malloc, extern "C" fn(usize) -> Memory, ptr::null_mut(), bytes);
    allocated(Kind::Malloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn valloc_from(bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(valloc, extern "C" fn(usize) -> Memory, ptr::null_mut(), bytes);
    allocated(Kind::Valloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn pvalloc_from(bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(pvalloc, extern "C" fn(usize) -> Memory, ptr::null_mut(), bytes);
    allocated(Kind::Pvalloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn calloc_from(n: usize, bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(calloc, extern "C" fn(usize, usize) -> Memory, ptr::null_mut(), n, bytes);
    // Where it overflows there is no memory.
    allocated(Kind::Calloc, memory, n.wrapping_mul(bytes), Registers { sp, bp });
    memory
}

extern "C" fn memalign_from(alignment: usize, bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(memalign, extern "C" fn(usize, usize) -> Memory, ptr::null_mut(), alignment, bytes);
    allocated(Kind::Memalign, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn aligned_alloc_from(alignment: usize, bytes: usize, sp: usize, bp: usize) -> Memory {
    let memory = original!(aligned_alloc, extern "C" fn(usize, usize) -> Memory, ptr::null_mut(), alignment, bytes);
    allocated(Kind::AlignedAlloc, memory, bytes, Registers { sp, bp });
    memory
}

extern "C" fn posix_memalign_from(place: *mut Memory, alignment: usize, bytes: usize, sp: usize, bp: usize) -> c_int {
    type Function = extern "C" fn(*mut Memory, usize, usize) -> c_int;
    let result = original!(posix_memalign, Function, libc::ENOMEM, place, alignment, bytes);
    if result == 0 {
        // SAFETY: the allocator has written there.
        allocated(Kind::PosixMemalign, unsafe { place.read() }, bytes, Registers { sp, bp });
    }
    result
}

extern "C" fn free_from(memory: Memory, sp: usize, bp: usize) {
    if !memory.is_null() && is_recorded() {
        if process::is_detailed() {
            free_in_detail(memory, Registers { sp, bp });
        } else if let Some(place) = chunks::reserve(thread::current(), 1) {
            place.finish(Kind::Free, pool::ticks_before(), memory as u64);
        }
    }
    original!(free, extern "C" fn(Memory), (), memory)
}

/// Records a release with its stack.
#[cold]
#[inline(never)]
fn free_in_detail(memory: Memory, registers: Registers) {
    let thread = thread::current();
    let stack = stacks::number(thread, registers);
    if let Some(place) = chunks::reserve(thread, 2) {
        place.more(1, 0, u64::from(stack));
        place.finish(Kind::Free, pool::ticks_before(), memory as u64);
    }
}

extern "C" fn realloc_from(old: Memory, bytes: usize, sp: usize, bp: usize) -> Memory {
    type Function = extern "C" fn(Memory, usize) -> Memory;
    if old.is_null() {
        let memory = original!(realloc, Function, ptr::null_mut(), old, bytes);
        allocated(Kind::Realloc, memory, bytes, Registers { sp, bp });
        return memory;
    }
    // Only when it has succeeded it is known that the old memory was given back, but that was before.
    let before = is_recorded().then(pool::ticks_before);
    let memory = original!(realloc, Function, ptr::null_mut(), old, bytes);
    if let Some(before) = before.filter(|_| !memory.is_null() || bytes == 0)
        && let Some(place) = chunks::reserve(thread::current(), 1)
    {
        place.finish(Kind::ReallocFree, before, old as u64);
    }
    allocated(Kind::Realloc, memory, bytes, Registers { sp, bp });
    memory
}
