//! The functions that begin threads, and those by which one gives up what a thread leaves: it is joined, or detached.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};

use libc::{pthread_attr_t, pthread_t};
use rftrace_format::resources::{Kind, Resource};

use super::calls::{Call, Missing, Told};
use crate::originals::{self, Original};
use crate::stacks::{self, Registers};
use crate::thread;

type Any = *mut c_void;
type Attributes = *const pthread_attr_t;

interpose! {
    4 (place: *const pthread_t, attributes: Attributes, start: Any, argument: Any) -> c_int {
        begun(Kind::PthreadCreate, place, is_joinable(attributes))
    } pthread_create;
    3 (place: *const pthread_t, start: Any, argument: Any) -> c_int { begun(Kind::ThrdCreate, place, true) } thrd_create;
    2 (thread: pthread_t, result: Any) -> c_int { joined(Kind::PthreadJoin, thread) } pthread_join pthread_tryjoin_np;
    3 (thread: pthread_t, result: Any, time: Any) -> c_int { joined(Kind::PthreadJoin, thread) } pthread_timedjoin_np;
    4 (thread: pthread_t, result: Any, clock: c_int, time: Any) -> c_int {
        joined(Kind::PthreadJoin, thread)
    } pthread_clockjoin_np;
    2 (thread: pthread_t, result: Any) -> c_int { joined(Kind::ThrdJoin, thread) } thrd_join;
    1 (thread: pthread_t) -> c_int { detached(Kind::PthreadDetach, thread) } pthread_detach;
    1 (thread: pthread_t) -> c_int { detached(Kind::ThrdDetach, thread) } thrd_detach;
}

fn begin(registers: Registers) -> Option<Call> {
    Call::begin(Resource::Thread, registers)
}

/// True if a thread with these attributes has to be joined.
fn is_joinable(attributes: Attributes) -> bool {
    let mut state = MaybeUninit::<c_int>::uninit();
    // SAFETY: the caller's attributes, and a place for the answer.
    attributes.is_null()
        || thread::keeping_errno(|| unsafe {
            unsafe extern "C" {
                fn pthread_attr_getdetachstate(attributes: Attributes, state: *mut c_int) -> c_int;
            }
            pthread_attr_getdetachstate(attributes, state.as_mut_ptr()) != 0
                || state.assume_init() == libc::PTHREAD_CREATE_JOINABLE
        })
}

fn begun(
    kind: Kind,
    place: *const pthread_t,
    is_joinable: bool,
    registers: Registers,
    original: impl FnOnce() -> c_int,
) -> c_int {
    let call = begin(registers).filter(|_| is_joinable);
    stacks::thread_begins();
    let result = original();
    if let Some(call) = call.filter(|_| result == 0) {
        // SAFETY: the function has written it there.
        let thread = unsafe { place.read() };
        call.taken(kind, thread, &[], || Told::only(thread));
    }
    result
}

/// One that waits for a thread: as long as that runs it is there.
fn joined(kind: Kind, thread: pthread_t, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = begin(registers);
    let result = original();
    if let Some(call) = call.filter(|_| result == 0) {
        call.waited_for(kind, thread);
    }
    result
}

fn detached(kind: Kind, thread: pthread_t, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = begin(registers);
    let result = original();
    if let Some(call) = call.filter(|_| result == 0) {
        call.given_back(kind, thread, thread);
    }
    result
}
