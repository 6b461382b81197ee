//! A cache of a task's recently looked-up functions, as most calls are of few functions.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use crate::symbols::Symbol;
use crate::task::Task;
use crate::trace::Trace;

/// The number of remembered functions: those in frequent use. The minimum is for one of very many tasks.
const COUNTS: std::ops::RangeInclusive<usize> = 1 << 5..=1 << 10;

/// The number of remembered functions of all tasks read at once.
const ALL_COUNTS: usize = 1 << 16;

/// A cache for looking up the functions of one task. A clone starts empty.
#[derive(Debug)]
pub struct Functions<'t> {
    trace: &'t Trace,
    task: &'t Task,
    /// The period with one function for each address.
    hold: RefCell<Range<u64>>,
    /// None, before the first one is asked for; then a power of two.
    known: RefCell<Vec<Known<'t>>>,
    count: usize,
}

impl Clone for Functions<'_> {
    fn clone(&self) -> Self {
        Self { known: RefCell::default(), hold: RefCell::new(0..0), ..*self }
    }
}

#[derive(Debug, Clone, Copy)]
struct Known<'t> {
    addr: u64,
    symbol: Option<&'t Symbol>,
}

/// No record has such an address.
const NONE: Known<'_> = Known { addr: u64::MAX, symbol: None };

impl<'t> Functions<'t> {
    /// Creates the cache for one of the trace's tasks.
    pub fn new(trace: &'t Trace, task: &'t Task) -> Self {
        Self::among(trace, task, 1)
    }

    /// The same, while those of as many tasks are looked up.
    pub(crate) fn among(trace: &'t Trace, task: &'t Task, n_tasks: usize) -> Self {
        let count = (ALL_COUNTS / n_tasks.max(1)).clamp(*COUNTS.start(), *COUNTS.end()).next_power_of_two();
        Self { trace, task, hold: RefCell::new(0..0), known: RefCell::default(), count }
    }

    /// Returns the same as [`Trace::function_name`].
    pub fn name(&self, time_ns: u64, addr: u64) -> Cow<'t, str> {
        self.trace.name_of(self.symbol(time_ns, addr), (self.task, time_ns, addr))
    }

    /// Returns the same as [`Trace::same_function`].
    #[inline]
    pub fn are_same(&self, time_ns: u64, a: u64, b: u64) -> bool {
        a == b
            || self.symbol(time_ns, a).is_some_and(|symbol_a| {
                self.symbol(time_ns, b).is_some_and(|symbol_b| std::ptr::eq(symbol_a, symbol_b))
            })
    }

    /// The name of an event, if it is known.
    pub(crate) fn event_name(&self, event: u64) -> Option<&'t str> {
        self.trace.events().known(event)
    }

    #[inline]
    fn symbol(&self, time_ns: u64, addr: u64) -> Option<&'t Symbol> {
        if !self.hold.borrow().contains(&time_ns) {
            self.forget(time_ns);
        }
        // Functions begin at multiples of 16, most of them near each other.
        let place = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - self.count.ilog2());
        let known = &mut self.known.borrow_mut()[place as usize];
        if known.addr != addr {
            *known = Known { addr, symbol: self.trace.symbol(self.task, time_ns, addr) };
        }
        known.symbol
    }

    #[cold]
    fn forget(&self, time_ns: u64) {
        *self.hold.borrow_mut() = self.trace.names_hold(self.task, time_ns);
        let mut known = self.known.borrow_mut();
        known.clear();
        known.resize(self.count, NONE);
    }
}
