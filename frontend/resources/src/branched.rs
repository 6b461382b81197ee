//! Which specified functions have a branch at their beginning, as the tracer's library says that makes them: these are recorded there, whoever calls
//! them, and nowhere else.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_format::resources::Resource;
use rftrace_format::specification::MAX_FUNCTIONS;

use crate::process;
use crate::specifications;

/// Their addresses, each at the first free place from its hash on. More than twice as many as there can be.
static PLACES: [AtomicUsize; N_PLACES] = [const { AtomicUsize::new(0) }; N_PLACES];
const N_PLACES: usize = (4 * MAX_FUNCTIONS).next_power_of_two();

/// The places where an address may be, one after the other.
fn places(address: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    let first = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (first..first + N_PLACES).map(|place| &PLACES[place % N_PLACES])
}

/// True if the function at an address has one.
pub(crate) fn has(address: usize) -> bool {
    let mut places = places(address).map(|place| place.load(Relaxed));
    places.find(|&known| known == address || known == 0) == Some(address) && address != 0
}

/// The target of branches; null where this processor does not save all registers at a time.
#[unsafe(no_mangle)]
extern "C" fn rftrace_resources_hook() -> *const () {
    unsafe extern "C" {
        fn rftrace_resources_entered();
    }

    match std::is_x86_feature_detected!("xsave") {
        true => rftrace_resources_entered as *const (),
        false => std::ptr::null(),
    }
}

/// Says that the function with a number has one.
#[unsafe(no_mangle)]
extern "C" fn rftrace_resources_branched(address: usize, number: usize) {
    let memory = Resource::Memory;
    if process::is_recorded(memory)
        && specifications::function(number).is_some_and(|it| it.resource() == memory.number())
    {
        process::set_layered();
    }
    let free = |place: &&AtomicUsize| [0, address].contains(&place.load(Relaxed));
    if let Some(place) = places(address).find(free) {
        place.store(address, Relaxed);
    }
}
