//! The tests of a Rust test binary that have allocated the unreleased resources.
//!
//! The test is found in the stack: the function below the one by which libtest calls it. A thread begun by a test
//! belongs to the test, and so do threads begun by such a thread. Allocations of libtest itself belong to no test.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use rftrace_format::resources::{Kind, Resource};
use rftrace_read::{Pattern, Result};

use crate::account::STANDARD;
use crate::live::{Until, follow};
use crate::names::{Name, Names};
use crate::recording::Recording;
use crate::report::is_suppressed;

/// The leaks of a test.
#[derive(Debug, Default)]
pub struct TestLeaks {
    /// The number and the bytes of unreleased blocks, for each resource.
    pub kept: BTreeMap<Resource, (u64, u64)>,
    /// The same for each stack with its callers, innermost first. The largest stacks come first.
    pub stacks: Vec<(Resource, u64, u64, Rc<[Name]>)>,
}

/// The tests with leaks, by name.
#[derive(Debug, Default)]
pub struct Tests {
    /// The leaks of each test.
    pub leaks: BTreeMap<String, TestLeaks>,
    /// The leaks that do not count, for each resource: suppressed ones, and global data.
    pub suppressed: BTreeMap<Resource, (u64, u64)>,
    /// The leaks outside of tests, for each resource.
    pub outside: BTreeMap<Resource, (u64, u64)>,
}

/// libtest calls a test by this.
const CALLER: &str = "test::__rust_begin_short_backtrace";

/// Functions by which something is made once for the whole process, which is meant to stay, and what Rust's library keeps of a panic.
const ONCE: [&str; 7] = [
    "std::sync::once::Once::",
    "std::sys::sync::once::",
    "std::sync::once_lock::OnceLock<T>::initialize",
    "std::sync::poison::once::",
    "once_cell::imp::",
    "std::backtrace_rs::",
    "std::sys::backtrace::",
];

/// Something that is still there.
struct One {
    bytes: u64,
    stack: u32,
    tid: u32,
    ticks: u64,
}

/// The beginning of a thread: the call, and the thread that made it.
#[derive(Clone, Copy)]
struct Begun {
    stack: u32,
    tid: u32,
    ticks: u64,
}

/// Finds tests.
struct Finder<'r> {
    recording: &'r Recording,
    /// By process and `pthread_t`, the earlier first.
    begun: HashMap<(u32, u64), Vec<Begun>>,
    stacks: HashMap<u32, Rc<[Name]>>,
}

impl Tests {
    /// Finds the tests that have allocated the unreleased blocks of these resources. A stack with a function or module
    /// of `suppressed` does not count. Threads of tests are known if [`Resource::Thread`] was recorded.
    ///
    /// # Errors
    ///
    /// Those of [`Recording::events`]; or there are too many blocks at one time.
    pub fn of(
        recording: &Recording,
        resources: &[Resource],
        suppressed: &[Pattern],
        names: &mut Names,
    ) -> Result<Self> {
        let mut finder = Finder { recording, begun: HashMap::new(), stacks: HashMap::new() };
        recording.events(|event| {
            if matches!(event.kind, Kind::PthreadCreate | Kind::ThrdCreate) {
                let begun = Begun { stack: event.stack, tid: event.tid, ticks: event.began };
                finder.begun.entry((event.process, event.address)).or_default().push(begun);
            }
            true
        })?;
        let mut tests = Self::default();
        let mut sums: BTreeMap<(String, Resource, u32), (u64, u64)> = BTreeMap::new();
        for &resource in resources {
            let live = follow(recording, resource, Until::End, None, |live, event| {
                let (bytes, stack, tid, ticks) = (event.bytes, event.stack, event.tid, event.ticks);
                live.follow(event, || One { bytes, stack, tid, ticks });
                Ok(())
            })?;
            for ((process, what), one) in live.all() {
                let stack = finder.names_of(one.stack, names);
                let is_standard = resource == Resource::File && STANDARD.contains(&what);
                let place = if is_standard || is_suppressed(&stack, suppressed) || is_made_once(&stack) {
                    tests.suppressed.entry(resource).or_default()
                } else if let Some(test) = finder.test(process, one, names) {
                    sums.entry((test, resource, one.stack)).or_default()
                } else {
                    tests.outside.entry(resource).or_default()
                };
                *place = (place.0 + 1, place.1.saturating_add(one.bytes));
            }
        }
        for ((test, resource, stack), (blocks, bytes)) in sums {
            let leaks = tests.leaks.entry(test).or_default();
            let kept = leaks.kept.entry(resource).or_default();
            *kept = (kept.0 + blocks, kept.1.saturating_add(bytes));
            leaks.stacks.push((resource, blocks, bytes, finder.names_of(stack, names)));
        }
        for leaks in tests.leaks.values_mut() {
            leaks.stacks.sort_by_key(|&(resource, blocks, bytes, _)| (resource, std::cmp::Reverse((bytes, blocks))));
        }
        Ok(tests)
    }
}

impl Finder<'_> {
    fn names_of(&mut self, stack: u32, names: &mut Names) -> Rc<[Name]> {
        let recording = self.recording;
        let found = self.stacks.entry(stack).or_insert_with(|| {
            let frames = recording.stack(stack).iter();
            frames.flat_map(|&frame| names.of(recording.modules(), frame).to_vec()).collect()
        });
        Rc::clone(found)
    }

    /// The test that has taken something, by its name as libtest has it.
    fn test(&mut self, process: u32, one: &One, names: &mut Names) -> Option<String> {
        /// Threads that begin threads that begin threads.
        const MOST: usize = 64;

        let (mut stack, mut tid, mut ticks) = (one.stack, one.tid, one.ticks);
        for step in 0..MOST {
            let called = test_in(&self.names_of(stack, names));
            match called {
                Called::Test(name) => return Some(name),
                // The thread has the test's name, or its beginning.
                Called::Unnamed => {
                    let name = self.recording.thread(process, tid, ticks).map(|thread| thread.name.clone());
                    return name.filter(|name| !name.is_empty());
                }
                Called::Harness if step > 0 => return None,
                Called::Harness | Called::Unknown => {}
            }
            let thread = self.recording.thread(process, tid, ticks)?;
            let calls = self.begun.get(&(process, thread.pthread));
            let begun = calls.and_then(|calls| calls.iter().rev().find(|begun| begun.ticks <= ticks));
            Begun { stack, tid, ticks } = *begun?;
        }
        None
    }
}

/// The test named by a stack.
#[derive(Debug, PartialEq, Eq)]
enum Called {
    /// A test with this name.
    Test(String),
    /// A test whose function was inlined.
    Unnamed,
    /// Only libtest.
    Harness,
    /// Nothing.
    Unknown,
}

fn test_in(stack: &[Name]) -> Called {
    if let Some(caller) = stack.iter().rposition(|name| name.function.starts_with(CALLER)) {
        let is_call =
            |name: &&Name| name.function.contains("ops::function::FnOnce") || name.function.starts_with(CALLER);
        let mut inner = stack[..caller].iter().rev().skip_while(is_call);
        return inner.next().map_or(Called::Unnamed, |name| Called::Test(test_name(&name.function)));
    }
    let is_harness = stack.iter().any(|name| name.function.starts_with("test::"));
    if is_harness { Called::Harness } else { Called::Unknown }
}

/// A test's name: that of its function without the crate.
fn test_name(function: &str) -> String {
    let function = function.strip_suffix("::{{closure}}").unwrap_or(function);
    let function = function.strip_suffix("::{closure#0}").unwrap_or(function);
    function.split_once("::").map_or(function, |(_, name)| name).to_owned()
}

fn is_made_once(stack: &[Name]) -> bool {
    stack.iter().any(|name| {
        // Frames with which the runtime begins each thread are no panic's.
        !name.function.contains("__rust_begin_short_backtrace")
            && !name.function.contains("__rust_end_short_backtrace")
            && ONCE.iter().any(|once| name.function.starts_with(once))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(functions: &[&str]) -> Vec<Name> {
        let name = |function: &&str| Name {
            function: (*function).to_owned(),
            place: None,
            is_inlined: false,
            module: String::new(),
        };
        functions.iter().map(name).collect()
    }

    #[test]
    fn tests_are_found_in_stacks() {
        let test = |functions: &[&str]| test_in(&stack(functions));
        let harness = ["test::__rust_begin_short_backtrace", "test::run_test_in_process::{closure#0}", "main"];
        let inner = ["alloc::alloc::alloc", "app::make", "app::tests::keeps", "app::tests::keeps::{closure#0}"];
        let call = ["<app::tests::keeps::{closure#0} as core::ops::function::FnOnce<()>>::call_once"];
        assert_eq!(test(&[&inner[..], &call, &harness].concat()), Called::Test("tests::keeps".to_owned()));
        assert_eq!(test(&[&["app::keeps"][..], &harness].concat()), Called::Test("keeps".to_owned()));
        assert_eq!(test(&[&call[..], &harness].concat()), Called::Unnamed);
        assert_eq!(test(&harness[1..]), Called::Harness);
        assert_eq!(test(&["std::thread::spawn", "app::main"]), Called::Unknown);
    }

    #[test]
    fn what_is_made_once_for_all() {
        assert!(is_made_once(&stack(&["malloc", "std::sys::sync::once::futex::Once::call", "app::tests::keeps"])));
        assert!(!is_made_once(&stack(&["app::Once::call", "std::sys::backtrace::__rust_begin_short_backtrace"])));
    }
}
