//! Nested calls from the events of a task in the kernel.
//!
//! - A system call lasts from `sys_enter` to `sys_exit`.
//! - The tracer `function_graph` records entries and exits of functions.
//! - The tracer `function` records only entries, with the caller. In a system call, a function is assumed to end with
//!   the system call, or when another function is entered whose caller is neither it nor a function called by it. The
//!   assumed end is never too early. Outside of system calls, in interrupts and faults, no record tells when the kernel
//!   was left. Functions there are points, one behind the other.

/// Functions that are open in a task, at the most.
const MAX_OPEN: usize = 512;

/// The beginning or the end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// True for the beginning.
    pub is_entry: bool,
    /// The address of the function.
    pub addr: u64,
    /// The number of open calls in the kernel around it.
    pub depth: usize,
}

/// The open calls of a task in the kernel.
#[derive(Debug, Default)]
pub struct Nesting {
    open: Vec<u64>,
    /// The outermost one is a system call.
    is_in_syscall: bool,
    /// Of those that are open, the ones that there was no room for.
    n_too_deep: usize,
}

impl Nesting {
    /// Returns true if no call is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Handles the beginning of a system call. Open calls have ended without a record.
    pub fn syscall(&mut self, addr: u64, never_returns: bool, out: &mut Vec<Step>) {
        self.end_all(out);
        self.enter(addr, out);
        if never_returns {
            self.end_all(out);
        } else {
            self.is_in_syscall = true;
        }
    }

    /// Handles the end of a system call, and of all calls in it.
    pub fn syscall_end(&mut self, addr: u64, out: &mut Vec<Step>) {
        if self.is_in_syscall && self.open.first() == Some(&addr) {
            self.end_all(out);
        }
    }

    /// Handles the entry of a function whose end is recorded.
    pub fn enter(&mut self, addr: u64, out: &mut Vec<Step>) {
        if self.open.len() >= MAX_OPEN {
            self.n_too_deep += 1;
            return;
        }
        out.push(Step { is_entry: true, addr, depth: self.open.len() });
        self.open.push(addr);
    }

    /// Handles the end of a function, and of all calls in it. It ignores a function that is not open.
    pub fn exit(&mut self, addr: u64, out: &mut Vec<Step>) {
        if self.n_too_deep > 0 {
            self.n_too_deep -= 1;
            return;
        }
        let functions = self.open.get(usize::from(self.is_in_syscall)..).unwrap_or_default();
        if let Some(place) = functions.iter().rposition(|&open| open == addr) {
            self.end_to(place + usize::from(self.is_in_syscall), out);
        }
    }

    /// Handles the entry of a function, called by `caller`, whose end is not recorded.
    pub fn call(&mut self, addr: u64, caller: u64, out: &mut Vec<Step>) {
        if !self.is_in_syscall {
            out.push(Step { is_entry: true, addr, depth: self.open.len() });
            out.push(Step { is_entry: false, addr, depth: self.open.len() });
            return;
        }
        let functions = self.open.get(1..).unwrap_or_default();
        let around = functions.iter().rposition(|&open| open == caller).map_or(1, |place| place + 2);
        self.end_to(around, out);
        if self.open.len() < MAX_OPEN {
            self.enter(addr, out);
        }
    }

    /// Ends all open calls.
    pub fn end_all(&mut self, out: &mut Vec<Step>) {
        self.end_to(0, out);
        self.is_in_syscall = false;
        self.n_too_deep = 0;
    }

    fn end_to(&mut self, n_left: usize, out: &mut Vec<Step>) {
        while self.open.len() > n_left
            && let Some(addr) = self.open.pop()
        {
            out.push(Step { is_entry: false, addr, depth: self.open.len() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSCALL: u64 = 100;

    /// The steps, as text: `+1 +2 -2 -1`.
    fn told(act: impl FnOnce(&mut Nesting, &mut Vec<Step>)) -> String {
        let (mut nesting, mut out) = (Nesting::default(), Vec::new());
        act(&mut nesting, &mut out);
        let mut depth = 0;
        let mut step = |step: &Step| {
            depth -= usize::from(!step.is_entry);
            assert_eq!(step.depth, depth);
            depth += usize::from(step.is_entry);
            format!("{}{}", if step.is_entry { '+' } else { '-' }, step.addr)
        };
        out.iter().map(&mut step).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn functions_lie_below_their_callers() {
        let steps = told(|nesting, out| {
            nesting.syscall(SYSCALL, false, out);
            for (addr, caller) in [(1, 50), (2, 1), (3, 2), (4, 1), (5, 50), (6, 5)] {
                nesting.call(addr, caller, out);
            }
            nesting.syscall_end(SYSCALL, out);
        });
        assert_eq!(steps, "+100 +1 +2 +3 -3 -2 +4 -4 -1 +5 +6 -6 -5 -100");
    }

    #[test]
    fn outside_of_system_calls_functions_are_points() {
        let steps = told(|nesting, out| {
            nesting.call(1, 9, out);
            nesting.call(2, 1, out);
            nesting.syscall(SYSCALL, true, out);
            nesting.call(3, 1, out);
        });
        assert_eq!(steps, "+1 -1 +2 -2 +100 -100 +3 -3");
    }

    #[test]
    fn a_graph_has_its_ends() {
        let steps = told(|nesting, out| {
            nesting.enter(1, out);
            nesting.exit(1, out);
            nesting.syscall(SYSCALL, false, out);
            nesting.enter(2, out);
            nesting.enter(3, out);
            nesting.exit(2, out);
            nesting.exit(7, out);
            nesting.exit(SYSCALL, out);
            nesting.syscall_end(SYSCALL, out);
            nesting.syscall_end(SYSCALL, out);
        });
        assert_eq!(steps, "+1 -1 +100 +2 +3 -3 -2 -100");
    }

    #[test]
    fn what_does_not_fit_ends_what_is_open() {
        let steps = told(|nesting, out| {
            nesting.syscall_end(SYSCALL, out);
            nesting.syscall(SYSCALL, false, out);
            nesting.enter(1, out);
            nesting.syscall_end(SYSCALL + 1, out);
            nesting.syscall(SYSCALL + 2, false, out);
            nesting.end_all(out);
        });
        assert_eq!(steps, "+100 +1 -1 -100 +102 -102");
    }

    #[test]
    fn no_stack_grows_for_ever() {
        let (mut nesting, mut out) = (Nesting::default(), Vec::new());
        (0..2000).for_each(|_| nesting.enter(1, &mut out));
        (0..2000).for_each(|_| nesting.exit(1, &mut out));
        assert_eq!((out.len(), nesting.open.len()), (2 * MAX_OPEN, 0));
        nesting.syscall(SYSCALL, false, &mut out);
        (0..2000).for_each(|addr| nesting.call(addr + 1, addr, &mut out));
        assert!(nesting.open.len() <= MAX_OPEN);
    }
}
