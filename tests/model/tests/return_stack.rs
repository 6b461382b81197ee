//! The return stack against a naive model: programs of random calls, returns, tail calls, jumps, switches of stacks and
//! threads, with signal handlers in between.
//!
//! Stacks are words of memory; a call writes its return address into a word and runs the hook, a return does what the
//! word says. The model is a list of frames for each stack. Always checked: every return goes where the call came from,
//! and each thread's records are balanced. Where the tracer can know all it must also record exactly what the model did.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use proptest::test_runner::{Config, FailurePersistence, RngSeed};
use rftrace_model::abi::{MAX_CHUNK_BYTES, RETURN_STACK_ENTRIES, ThreadBlock, action, site_slot, state};
use rftrace_model::arch::{self, Call};
use rftrace_model::lab::{self, Event, Lab, Options};
use rftrace_model::steer;
use rftrace_model::sync::atomic::AtomicU64;

/// Bytes that a function of a handler has below the interrupted one: the red zone and the hook's own frames.
const BELOW: usize = 1024;
/// Words at the low end of a stack that only handlers use.
const RESERVED: usize = 256;
/// Addresses of functions: an id, 16 bytes each. Those of signal handlers are above all others.
const FUNCTIONS: usize = 0x40_0000;
const HANDLERS: usize = 0x8000_0000;
/// Return addresses, by the number of the call.
const CALLERS: usize = 0x7000_0000_0000;

/// Slots of the table of functions that a filter knows; far more than calls in a program.
const TABLE_SLOTS: usize = if cfg!(miri) { 1 << 10 } else { 1 << 13 };

/// An operation of the program.
#[derive(Clone, Debug)]
enum Op {
    /// Calls functions, one in the other.
    Call {
        n: usize,
        style: Style,
    },
    /// Returns from so many functions.
    Return(usize),
    /// Ends the innermost function by a jump to another one.
    TailCall(Style),
    /// Goes on in a function further out, without returns.
    Longjmp(usize),
    /// An exception leaves so many functions.
    Unwind(usize),
    /// Goes on where a stack stands, if no other thread is on it.
    Switch(usize),
    /// Gives a stack up; its memory serves others.
    Abandon(usize),
    /// Another thread goes on.
    Thread(usize),
    /// The thread ends, with its stack; the next time it is another one.
    EndThread,
    Enable(bool),
    /// Nothing of a thread is recorded any more, or again.
    Exclude(usize, bool),
    Filter(Filter),
    /// A signal arrives after so many steps of the tracer.
    Signal {
        after: usize,
        on_alternate_stack: bool,
    },
}

/// The filter from now on.
#[derive(Clone, Copy, Debug)]
struct Filter {
    active: bool,
    only_within: bool,
    max_depth: u32,
    min_ticks: u64,
}

/// How a function is compiled.
#[derive(Clone, Copy, Debug)]
struct Style {
    /// `__fentry__` instead of `mcount`.
    fentry: bool,
    /// Sets up a frame pointer; always with `mcount`.
    frame_pointer: bool,
    /// Calls a hook at all.
    traced: bool,
    /// Realigns its stack the way that hides the return address.
    realigned: bool,
    /// Words of its frame.
    words: usize,
    /// Words that its caller pushed for it.
    pushed: usize,
    /// A filter's [`action`] for it; 0: the table does not have it.
    action: u8,
}

/// Operations that a test allows.
#[derive(Clone, Copy, Debug, Default)]
struct Mix {
    jumps: bool,
    switches: bool,
    abandons: bool,
    stacks: &'static [usize],
    threads: bool,
    /// Functions without frame pointer or hook, arguments on the stack.
    mixed_styles: bool,
    fentry: bool,
    realigned: bool,
    /// Frames of more than 16 KiB.
    large: bool,
    /// More calls than the return stack holds.
    deep: bool,
    on_off: bool,
    filters: bool,
    signals: bool,
    alternate_stack: bool,
}

fn style(mix: Mix) -> impl Strategy<Value = Style> {
    let words = prop_oneof![20 => 0..24usize, 1 => 0..if mix.large { 3_000 } else { 24usize }];
    (any::<[bool; 3]>(), 0..8u8, words, 0..3usize, 0..=action::NOT_INTO).prop_map(
        move |([fentry, fp, traced], rare, words, pushed, action)| Style {
            fentry: fentry && mix.fentry,
            frame_pointer: fp || !(mix.mixed_styles && mix.fentry && fentry),
            traced: !mix.mixed_styles || traced || rare > 3,
            realigned: mix.realigned && !(fentry && mix.fentry) && rare == 0,
            words,
            pushed: if mix.mixed_styles { pushed } else { 0 },
            action: if mix.filters { action } else { 0 },
        },
    )
}

fn op(mix: Mix) -> impl Strategy<Value = Op> {
    let on = |flag: bool, weight: u32| if flag { weight } else { 0 };
    let alternate = mix.alternate_stack;
    let stack = || prop::sample::select(if mix.stacks.is_empty() { &[0] } else { mix.stacks });
    let signal = move |(after, other)| Op::Signal { after, on_alternate_stack: alternate && other };
    let deep = if mix.deep { RETURN_STACK_ENTRIES - 23..RETURN_STACK_ENTRIES + 37 } else { 4..40 };
    let filter =
        |(active, only_within, max_depth, min_ticks)| Op::Filter(Filter { active, only_within, max_depth, min_ticks });
    let filter = (any::<bool>(), any::<bool>(), 1..30u32, 0..60u64).prop_map(filter);
    let calls = prop_oneof![30 => 1..4usize, 1 => deep];
    let exclude = (if mix.threads { 0..N_THREADS } else { 0..1 }, any::<bool>());
    let mut choices = vec![
        (40, (calls, style(mix)).prop_map(|(n, style)| Op::Call { n, style }).boxed()),
        (30, prop_oneof![20 => 1..4usize, 1 => 20..1_100usize].prop_map(Op::Return).boxed()),
        (6, style(mix).prop_map(Op::TailCall).boxed()),
        (6, (1..5usize).prop_map(Op::Unwind).boxed()),
        (on(mix.jumps, 8), prop_oneof![20 => 1..5usize, 1 => 5..1_100usize].prop_map(Op::Longjmp).boxed()),
        (on(mix.switches, 16), stack().prop_map(Op::Switch).boxed()),
        (on(mix.abandons, 4), stack().prop_map(Op::Abandon).boxed()),
        (on(mix.threads, 6), (0..N_THREADS).prop_map(Op::Thread).boxed()),
        (on(mix.threads, 2), Just(Op::EndThread).boxed()),
        (on(mix.on_off, 6), any::<bool>().prop_map(Op::Enable).boxed()),
        (on(mix.on_off, 6), exclude.prop_map(|(thread, is_excluded)| Op::Exclude(thread, is_excluded)).boxed()),
        (on(mix.filters, 6), filter.boxed()),
        (on(mix.signals, 12), (0..80usize, any::<bool>()).prop_map(signal).boxed()),
    ];
    choices.retain(|(weight, _)| *weight > 0);
    prop::strategy::Union::new_weighted(choices)
}

/// Threads that a program has at a time.
const N_THREADS: usize = 3;

/// Where the stacks lie, in words, low addresses first: start and end. Some touch each other, some are far away.
const STACKS: [(usize, usize); 9] = [
    (2_048, 4_096),
    (4_096, 4_480),
    (4_480, 4_864),
    MAIN,
    (28_864, 29_248),
    (29_248, 31_000),
    (40_000, 44_000),
    (50_000, 60_000),
    (70_000, 90_000),
];
const MAIN: (usize, usize) = (4_864, 28_864);
/// The stacks of threads, which they begin on.
const THREAD_STACKS: [usize; N_THREADS] = [3, 7, 8];
/// The alternate signal stack.
const ALTERNATE: (usize, usize) = (0, 2_048);
const WORDS: usize = 90_000;
/// Their memory is aligned to this, so that a failing program fails again.
const PAGE: usize = 4096;

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(0) };
    static SIGNAL: RefCell<Option<Signal>> = const { RefCell::new(None) };
}

/// A signal to come.
struct Signal {
    after: usize,
    /// Its handler's frames lie below this address.
    stack_pointer: usize,
    frame_pointer: usize,
    id: usize,
}

/// Before each atomic operation of the tracer.
fn at_point(_address: usize) {
    let due = SIGNAL.with_borrow_mut(|signal| match signal {
        Some(due) if due.after == 0 => signal.take(),
        Some(later) => {
            later.after -= 1;
            None
        }
        None => None,
    });
    if let Some(signal) = due {
        // Calls one function, which calls two.
        let outer = handler_call(signal.stack_pointer, signal.frame_pointer, signal.id);
        for i in 1..3 {
            let inner = handler_call(outer - 64, outer - 8, signal.id + i);
            handler_return(inner, signal.id + i);
        }
        handler_return(outer, signal.id);
    }
}

fn handler_call(stack_pointer: usize, frame_pointer: usize, id: usize) -> usize {
    let slot = stack_pointer - 8;
    write(slot, CALLERS + id);
    write(slot - 8, frame_pointer);
    let child_ip = HANDLERS + id * 16;
    let call = Call { parent_loc: slot, child_ip, stack_pointer: slot - 32, frame_pointer: slot - 8, static_chain: 0 };
    // SAFETY: all in the memory of the stacks.
    unsafe { arch::entry(call) };
    slot
}

fn handler_return(slot: usize, id: usize) {
    let mut ip = read(slot);
    let frame_pointer = read(slot - 8);
    while ip == arch::trampoline() {
        ip = arch::exit(slot, frame_pointer);
    }
    if ip != CALLERS + id {
        steer::fail(format!("a signal handler returns to {ip:x}, not {:x}", CALLERS + id));
    }
}

fn read(address: usize) -> usize {
    // SAFETY: all addresses in the tests are words of the stacks' memory, which is exposed.
    unsafe { (address as *const usize).read() }
}

fn write(address: usize, value: usize) {
    // SAFETY: as above.
    unsafe { (address as *mut usize).write(value) };
}

/// A function that runs.
#[derive(Clone, Copy, Debug)]
struct Frame {
    id: usize,
    slot: usize,
    /// Where it returns to.
    parent_ip: usize,
    stack_pointer: usize,
    /// rbp while it runs.
    frame_pointer: usize,
    /// An entry is in the trace.
    recorded: bool,
}

#[derive(Debug, Default)]
struct Stack {
    frames: Vec<Frame>,
}

/// A thread as the model sees it.
#[derive(Debug)]
struct Thread {
    stack: usize,
    /// Recorded functions, outermost first: the tree's present branch.
    open: Vec<usize>,
    /// Where the return addresses of recorded functions were.
    slots: HashMap<usize, usize>,
    events: Vec<Event>,
    /// True if the newest record is one of lost calls.
    is_lost_last: bool,
    /// How many functions were open behind the last jump, where that is not noticed yet.
    jumped_to: Option<usize>,
    tid: u32,
    /// Where the tracer keeps what it knows of it, once it has made a call.
    block: *mut ThreadBlock,
    is_excluded: bool,
}

struct Program {
    lab: Lab,
    /// Where the stacks are.
    base: usize,
    _memory: Vec<usize>,
    stacks: Vec<Stack>,
    threads: Vec<Thread>,
    /// Threads that have ended: their ids and events.
    ended: Vec<(u32, Vec<Event>)>,
    n_calls: usize,
    n_signals: usize,
    enabled: bool,
    /// Calls that found no room on the return stack, but for those of handlers.
    n_lost: u64,
    /// The functions that a filter knows.
    table: Vec<AtomicU64>,
}

impl Program {
    fn new(buffer_bytes: usize, n_left_buckets: usize) -> Self {
        let options = Options { buffer_bytes, n_blocks: N_THREADS + 8, n_left_buckets, ring: false };
        let lab = Lab::new(options);
        lab.enable();
        let mut memory = vec![0usize; WORDS + PAGE / 8];
        let base = memory.as_mut_ptr().expose_provenance().next_multiple_of(PAGE);
        let threads = THREAD_STACKS.map(|stack| Thread {
            stack,
            open: Vec::new(),
            slots: HashMap::new(),
            events: Vec::new(),
            is_lost_last: false,
            jumped_to: None,
            tid: 0,
            block: ptr::null_mut(),
            is_excluded: false,
        });
        THREAD.set(0);
        Self {
            lab,
            base,
            _memory: memory,
            stacks: STACKS.iter().map(|_| Stack::default()).collect(),
            threads: threads.into(),
            ended: Vec::new(),
            n_calls: 0,
            n_signals: 0,
            enabled: true,
            n_lost: 0,
            table: (0..TABLE_SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn address(&self, word: usize) -> usize {
        self.base + word * 8
    }

    fn thread(&mut self) -> &mut Thread {
        &mut self.threads[THREAD.get()]
    }

    /// True if calls of the running thread are recorded.
    fn is_recording(&mut self) -> bool {
        self.enabled && !self.thread().is_excluded
    }

    fn current(&mut self) -> usize {
        self.thread().stack
    }

    /// rsp and rbp now.
    fn registers(&mut self) -> (usize, usize) {
        let stack = self.current();
        match self.stacks[stack].frames.last() {
            Some(frame) => (frame.stack_pointer, frame.frame_pointer),
            None => (self.address(STACKS[stack].1), 0),
        }
    }

    fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.step(op);
        }
    }

    fn step(&mut self, op: &Op) {
        let stack = self.current();
        let (stack_pointer, frame_pointer) = self.registers();
        self.move_signal(stack_pointer, frame_pointer);
        match *op {
            Op::Call { n, style } => (0..n).for_each(|_| self.call(style)),
            Op::Return(n) => (0..n).for_each(|_| self.return_()),
            Op::TailCall(style) => self.tail_call(style),
            Op::Longjmp(n) => {
                for _ in 0..n.min(self.stacks[stack].frames.len().saturating_sub(1)) {
                    self.drop_frame();
                }
            }
            Op::Unwind(n) => (0..n).for_each(|_| self.unwind()),
            Op::Switch(stack) => {
                if self.threads.iter().all(|thread| thread.stack != stack) {
                    self.thread().stack = stack;
                }
            }
            Op::Abandon(stack) => {
                if self.threads.iter().all(|thread| thread.stack != stack) {
                    self.stacks[stack].frames.clear();
                }
            }
            Op::Thread(number) => THREAD.set(number),
            Op::EndThread => self.end_thread(),
            Op::Enable(on) => {
                if on {
                    self.lab.enable();
                } else {
                    self.lab.disable();
                }
                self.enabled = on;
            }
            Op::Exclude(number, is_excluded) => {
                let thread = &mut self.threads[number];
                if !thread.block.is_null() {
                    // SAFETY: a block of the tracer.
                    unsafe { self.lab.exclude(thread.block, is_excluded) };
                    thread.is_excluded = is_excluded;
                    thread.is_lost_last &= !is_excluded;
                }
            }
            Op::Filter(Filter { active, only_within, max_depth, min_ticks }) => {
                let filter = &self.lab.control().filter;
                filter.sites_mask.store(TABLE_SLOTS - 1, Relaxed);
                filter.sites.store(self.table.as_ptr().cast_mut(), Relaxed);
                let wanted = if only_within { state::IN as u32 } else { 0 };
                filter.wanted.store(wanted, Relaxed);
                filter.decisive.store(wanted | state::OUT as u32, Relaxed);
                filter.depth_limit.store(max_depth * state::DEPTH_ONE as u32, Relaxed);
                filter.min_ticks.store(min_ticks, Relaxed);
                self.lab.filter(active);
            }
            Op::Signal { after, on_alternate_stack } => {
                let alternate = self.address(ALTERNATE.1);
                self.n_signals += 3;
                SIGNAL.set(Some(Signal {
                    after,
                    stack_pointer: if on_alternate_stack { alternate } else { stack_pointer - BELOW },
                    frame_pointer,
                    id: self.n_signals,
                }));
            }
        }
    }

    /// A signal that is due during what follows finds this stack.
    fn move_signal(&mut self, stack_pointer: usize, frame_pointer: usize) {
        let alternate = self.address(ALTERNATE.1);
        SIGNAL.with_borrow_mut(|signal| {
            if let Some(signal) = signal {
                signal.frame_pointer = frame_pointer;
                if signal.stack_pointer != alternate {
                    signal.stack_pointer = stack_pointer - BELOW;
                }
            }
        });
    }

    fn call(&mut self, style: Style) {
        let (stack_pointer, _) = self.registers();
        self.n_calls += 1;
        let slot = stack_pointer - 8 - style.pushed * 8;
        self.enter(slot, CALLERS + self.n_calls, style);
    }

    /// Ends the innermost function by a jump. Its entry stays until the other one returns.
    fn tail_call(&mut self, style: Style) {
        let stack = self.current();
        let Some(frame) = self.stacks[stack].frames.last().copied() else { return };
        self.n_calls += 1;
        // The slot keeps its content.
        self.enter(frame.slot, frame.parent_ip, Style { realigned: false, ..style });
    }

    /// A function begins whose return address is in `slot`, or comes there.
    fn enter(&mut self, slot: usize, parent_ip: usize, style: Style) {
        let stack = self.current();
        let frames = &self.stacks[stack].frames;
        let caller = frames.last().copied();
        let is_tail_call = caller.is_some_and(|caller| caller.slot == slot);
        // A frame that a tail call ended has restored its caller's frame pointer.
        let outer = frames.iter().rev().find(|frame| frame.slot != slot);
        let caller_frame = outer.map_or(0, |outer| outer.frame_pointer);
        let low = self.address(STACKS[stack].0 + RESERVED);
        let align = if style.realigned { 64 } else { 8 };
        // A realigned frame has a copy of the return address.
        let parent_loc = if style.realigned { (slot & !(align - 1)) - 8 } else { slot };
        let stack_pointer = (parent_loc - 16).wrapping_sub(style.words * 8);
        if stack_pointer < low || stack_pointer > slot {
            return;
        }
        if !is_tail_call {
            write(slot, parent_ip);
        }
        write(parent_loc, read(slot));
        let frame_pointer = if style.frame_pointer || !style.fentry {
            write(parent_loc - 8, caller_frame);
            parent_loc - 8
        } else {
            caller_frame
        };
        let id = FUNCTIONS + self.n_calls * 16;
        let call = if style.fentry {
            Call { parent_loc, child_ip: id, stack_pointer: slot, frame_pointer: caller_frame, static_chain: slot ^ 1 }
        } else {
            let static_chain = if style.realigned { slot + 8 } else { 0 };
            let child_ip = if style.realigned { id | arch::REALIGNS } else { id };
            Call { parent_loc, child_ip, stack_pointer, frame_pointer, static_chain }
        };
        let id = call.child_ip;
        let mut recorded = false;
        if style.traced {
            recorded = self.expect_entry(id, caller.map(|caller| (caller, stack)), stack, parent_loc);
            // The static chain gives the frame by which a realigned frame's entry is named.
            let frame = if style.realigned && !style.fentry { slot } else { parent_loc };
            self.thread().slots.insert(id, frame);
            self.move_signal(stack_pointer, call.frame_pointer);
            if style.action != 0 {
                self.choose(call.child_ip, style.action);
            }
            // SAFETY: all in the memory of the stacks.
            unsafe { arch::entry(call) };
            self.note_thread();
        }
        self.stacks[stack].frames.push(Frame { id, slot, parent_ip, stack_pointer, frame_pointer, recorded });
    }

    /// Puts a function into the table of those that a filter knows, which forgets some others.
    fn choose(&self, child_ip: usize, action: u8) {
        if self.n_calls.is_multiple_of(TABLE_SLOTS / 2) {
            self.table.iter().for_each(|slot| slot.store(0, Relaxed));
        }
        let mut slot = site_slot(child_ip, TABLE_SLOTS - 1);
        while self.table[slot].load(Relaxed) != 0 {
            slot = (slot + 1) & (TABLE_SLOTS - 1);
        }
        self.table[slot].store((child_ip as u64) << 16 | u64::from(action), Relaxed);
    }

    fn note_thread(&mut self) {
        let block = arch::thread_block();
        if self.lab.block_number(block).is_some() {
            // SAFETY: a block of the tracer.
            self.thread().tid = unsafe { &*block }.tid.load(Relaxed);
            self.thread().block = block;
        }
    }

    /// Adds the events that the trace must show for an entered function. Returns true if its entry is recorded.
    fn expect_entry(&mut self, id: usize, caller: Option<(Frame, usize)>, stack: usize, parent_loc: usize) -> bool {
        if !self.is_recording() {
            return false;
        }
        let thread = self.thread();
        if thread.only_counts()
            && thread.open.last().and_then(|last| thread.slots.get(last)).is_some_and(|&slot| slot > parent_loc)
        {
            self.n_lost += 1;
            return false;
        }
        if let Some(jumped_to) = thread.jumped_to {
            thread.close_to(jumped_to);
        }
        if let Some((_, _)) = caller {
            self.expect_running(stack);
        }
        let thread = self.thread();
        if thread.open.len() == RETURN_STACK_ENTRIES {
            thread.is_lost_last = true;
            self.n_lost += 1;
            return false;
        }
        thread.open.push(id);
        thread.push(Event::Entry(id as u64));
        true
    }

    /// The thread goes on in the innermost frame of a stack: what was called from there, or since, has ended. What was
    /// left comes back.
    fn expect_running(&mut self, stack: usize) {
        let thread = &mut self.threads[THREAD.get()];
        let frames = || self.stacks[stack].frames.iter().filter(|frame| frame.recorded).map(|frame| frame.id);
        let Some(innermost) = frames().next_back() else { return };
        // From the innermost one outwards: most often it is the first.
        if let Some(place) = thread.open.iter().rposition(|&id| id == innermost) {
            thread.close_to(place + 1);
            return;
        }
        let missing: Vec<usize> = frames().filter(|id| !thread.open.contains(id)).collect();
        for id in missing {
            thread.open.push(id);
            thread.push(Event::Entry(id as u64));
        }
    }

    /// Frames of the slot that the innermost function of this stack has: one, or a chain of tail calls. Innermost first.
    fn innermost(&mut self) -> Vec<Frame> {
        let stack = self.current();
        let frames = &self.stacks[stack].frames;
        let Some(last) = frames.last() else { return Vec::new() };
        frames.iter().rev().take_while(|frame| frame.slot == last.slot).copied().collect()
    }

    fn return_(&mut self) {
        let group = self.innermost();
        let (Some(first), stack) = (group.first(), self.current()) else { return };
        let slot = first.slot;
        self.move_signal(slot + 8, self.frame_pointer_below(slot, stack));
        let frame_pointer = self.frame_pointer_below(slot, stack);
        let mut ip = read(slot);
        while ip == arch::trampoline() {
            // The stack pointer is above the slot when T runs: a handler overwrites it.
            ip = arch::exit(slot, frame_pointer);
        }
        assert_eq!(ip, first.parent_ip, "{:x} returns to the wrong place", first.id);
        self.expect_exits(&group);
    }

    fn frame_pointer_below(&self, slot: usize, stack: usize) -> usize {
        let outer = self.stacks[stack].frames.iter().rev().find(|frame| frame.slot != slot);
        outer.map_or(0, |outer| outer.frame_pointer)
    }

    fn unwind(&mut self) {
        let group = self.innermost();
        let (Some(first), stack) = (group.first(), self.current()) else { return };
        let slot = first.slot;
        self.move_signal(slot + 8, self.frame_pointer_below(slot, stack));
        if read(slot) == arch::trampoline() {
            assert_eq!(arch::unwound(slot), first.parent_ip, "{:x} is unwound to the wrong place", first.id);
        }
        self.expect_exits(&group);
    }

    /// The frames of a slot end properly.
    fn expect_exits(&mut self, group: &[Frame]) {
        let stack = self.current();
        for frame in group {
            if frame.recorded {
                let is_open = self.thread().open.contains(&frame.id);
                if self.is_recording() || is_open {
                    self.expect_running(stack);
                    let thread = self.thread();
                    if let Some(place) = thread.open.iter().rposition(|&id| id == frame.id) {
                        thread.close_to(place);
                    }
                }
            }
            self.stacks[stack].frames.pop();
        }
    }

    /// The innermost frame ends without the tracer's knowing.
    fn drop_frame(&mut self) {
        for frame in self.innermost() {
            let stack = self.current();
            self.stacks[stack].frames.pop();
            let thread = self.thread();
            if frame.recorded
                && let Some(place) = thread.open.iter().rposition(|&id| id == frame.id)
            {
                if thread.only_counts() {
                    thread.jumped_to = Some(place);
                } else {
                    thread.close_to(place);
                }
            }
        }
    }

    fn end_thread(&mut self) {
        let stack = self.current();
        let number = THREAD.get();
        if stack != THREAD_STACKS[number] {
            return;
        }
        self.lab.end_thread();
        self.stacks[stack].frames.clear();
        let thread = self.thread();
        thread.close_to(0);
        let (tid, events) = (std::mem::take(&mut thread.tid), std::mem::take(&mut thread.events));
        (thread.block, thread.is_excluded) = (ptr::null_mut(), false);
        self.ended.push((tid, events));
        arch::begin_thread();
    }

    /// Ends the recording. Returns what is expected of each thread.
    fn finish(&mut self) -> BTreeMap<u32, Vec<Event>> {
        SIGNAL.set(None);
        self.lab.disable();
        let threads = self.threads.iter_mut().map(|thread| {
            thread.close_to(0);
            (thread.tid, std::mem::take(&mut thread.events))
        });
        self.ended.drain(..).chain(threads).filter(|(_, events)| !events.is_empty()).collect()
    }
}

impl Thread {
    /// True if calls are counted as lost by their place alone: behind another one. Functions left by a jump seem to be open
    /// then.
    fn only_counts(&self) -> bool {
        self.open.len() == RETURN_STACK_ENTRIES && self.is_lost_last
    }

    fn close_to(&mut self, n: usize) {
        self.jumped_to = None;
        while self.open.len() > n {
            let id = self.open.pop().expect("longer than n");
            self.push(Event::Exit(id as u64));
        }
    }

    fn push(&mut self, event: Event) {
        self.events.push(event);
        self.is_lost_last = false;
    }
}

/// Bytes for a program's records. All of them are looked at, which takes Miri long: there it is not much more than they need.
fn buffer_bytes(ops: &[Op]) -> usize {
    let n_calls: usize = ops.iter().map(|op| if let Op::Call { n, .. } = op { *n } else { 1 }).sum();
    match n_calls {
        _ if !cfg!(miri) => 16 * MAX_CHUNK_BYTES,
        0..200 => MAX_CHUNK_BYTES / 4,
        _ => MAX_CHUNK_BYTES,
    }
}

/// Runs a program and checks what must always hold. Returns the recorded and the expected events of each thread.
fn check(ops: &[Op], n_left_buckets: usize, what: Check) -> (BTreeMap<u32, Vec<Event>>, BTreeMap<u32, Vec<Event>>) {
    steer::set_identity(Some(|| THREAD.get()));
    steer::at_each_point(Some(at_point));
    let mut program = Program::new(buffer_bytes(ops), n_left_buckets);
    program.run(ops);
    let expected = program.finish();
    steer::at_each_point(None);
    let is_handler = |event: &Event| {
        let (Event::Entry(address) | Event::Exit(address)) = event else { return false };
        *address >= HANDLERS as u64 && *address < CALLERS as u64
    };
    let mut recorded = program.lab.events();
    let mut n_lost = 0;
    for event in recorded.values().flatten() {
        if let Event::Lost(calls) = event {
            n_lost += calls;
        }
    }
    recorded.values_mut().for_each(|events| events.retain(|event| !matches!(event, Event::Lost(_))));
    recorded.values().for_each(|events| assert_nested(events));
    if what == Check::All {
        let at_most = program.n_lost + program.n_signals as u64;
        assert!((program.n_lost..=at_most).contains(&n_lost), "{n_lost} lost calls, not {}", program.n_lost);
        assert_counted_once(&program.lab.events_by_stack());
    }
    if what != Check::Returns {
        let segments = program.lab.segments();
        let by_naive_reader = segments.iter().map(|(tid, segments)| (*tid, lab::balanced(segments))).collect();
        assert_same(&recorded, &by_naive_reader);
    }
    steer::set_identity(None);
    let without_handlers = recorded.into_iter().map(|(tid, mut events)| {
        events.retain(|event| !is_handler(event));
        (tid, events)
    });
    let recorded = without_handlers.filter(|(_, events)| !events.is_empty()).collect();
    (recorded, expected)
}

fn assert_nested(events: &[Event]) {
    let mut open = Vec::new();
    for event in events {
        match event {
            Event::Entry(address) => open.push(address),
            Event::Exit(address) => assert_eq!(open.pop(), Some(address), "not the innermost"),
            Event::Lost(_) | Event::Gap | Event::Core(_) => {}
        }
    }
    assert!(open.is_empty(), "{open:x?} have no exits");
}

/// Each call is one call, however often the stack that it is on was left and resumed.
fn assert_counted_once(tasks: &[Vec<Event>]) {
    tasks.iter().for_each(|events| assert_nested(events));
    let mut entries: Vec<u64> = tasks
        .iter()
        .flatten()
        .filter_map(|event| match event {
            Event::Entry(address) => Some(*address),
            _ => None,
        })
        .collect();
    entries.sort_unstable();
    let twice = entries.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none(), "entered twice: {twice:x?} in {tasks:x?}");
}

/// Shows the first difference.
fn assert_same(found: &BTreeMap<u32, Vec<Event>>, expected: &BTreeMap<u32, Vec<Event>>) {
    assert!(found.keys().eq(expected.keys()), "threads {:?}, not {:?}", found.keys(), expected.keys());
    for ((tid, found), expected) in found.iter().zip(expected.values()) {
        let same = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
        if same < found.len().max(expected.len()) {
            let before = &found[same.saturating_sub(12)..same];
            let next = |events: &[Event]| format!("{:x?}", events[same..].iter().take(12).collect::<Vec<_>>());
            panic!("thread {tid}: after {before:x?}\n   found {}\nexpected {}", next(found), next(expected));
        }
    }
}

/// The check of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Returns, and the balance of the frontend's events.
    Returns,
    /// Balance of the records themselves.
    Balance,
    /// That they are what the program did.
    All,
}

fn try_out(ops: Vec<Op>, what: Check) {
    let _alone = lab::alone();
    steer::try_out(move || {
        let n_left_buckets = if what == Check::All { 1_024 } else { 256 };
        let (recorded, expected) = check(&ops, n_left_buckets, what);
        if what == Check::All {
            assert_same(&recorded, &expected);
        }
    });
}

/// As many cases as some seconds allow, or as RFTRACE_MODEL_CASES tells.
fn config(cases: u32) -> Config {
    let asked = std::env::var("RFTRACE_MODEL_CASES").ok().map(|cases| cases.parse().expect("a number"));
    // Miri finds in a program what it does at all, not what it does wrong: one of each mix is enough for it.
    let cases = if cfg!(miri) { 1 } else { asked.unwrap_or(cases) };
    let failure_persistence: Option<Box<dyn FailurePersistence>> = None;
    // The same programs each time, unless more are wanted.
    let rng_seed = if asked.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) };
    Config { cases, failure_persistence, rng_seed, max_shrink_iters: 10_000, ..Config::default() }
}

fn program(mix: Mix) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(mix), if cfg!(miri) { 15..20 } else { 1..80 })
}

const ALL: Mix = Mix {
    jumps: true,
    switches: true,
    abandons: true,
    stacks: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
    threads: true,
    mixed_styles: true,
    fentry: true,
    realigned: true,
    large: true,
    deep: true,
    on_off: true,
    filters: true,
    signals: true,
    alternate_stack: true,
};
const NONE: Mix = Mix {
    jumps: false,
    switches: false,
    abandons: false,
    stacks: &[],
    threads: false,
    mixed_styles: false,
    fentry: true,
    realigned: true,
    large: true,
    deep: true,
    on_off: false,
    filters: false,
    signals: false,
    alternate_stack: false,
};

proptest! {
    #![proptest_config(config(2_000))]

    /// Without jumps and other stacks nothing needs to be guessed, whatever the functions look like.
    #[test]
    fn calls_and_returns_are_recorded_as_they_are(ops in program(Mix { mixed_styles: true, on_off: true, ..NONE })) {
        try_out(ops, Check::All);
    }

    /// Functions with hooks and frame pointers: the next hook knows who called it, and what was left.
    #[test]
    fn jumps_end_what_they_leave(ops in program(Mix { jumps: true, large: false, ..NONE })) {
        try_out(ops, Check::All);
    }

    /// Handlers of signals at any step of the tracer.
    #[test]
    fn signals_change_nothing(
        ops in program(Mix { mixed_styles: true, on_off: true, signals: true, ..NONE })
    ) {
        try_out(ops, Check::All);
    }

    /// Stacks far from each other.
    #[test]
    fn coroutines_show_the_true_stack(ops in program(Mix { switches: true, stacks: &[3, 0, 6, 7], large: false, deep: false, ..NONE })) {
        try_out(ops, Check::All);
    }

    /// Anything but signals: every return is right, and records are balanced.
    #[test]
    fn every_return_is_right(ops in program(Mix { signals: false, alternate_stack: false, ..ALL })) {
        try_out(ops, Check::Balance);
    }

    #[test]
    fn every_return_is_right_with_signals(ops in program(Mix { alternate_stack: false, ..ALL })) {
        try_out(ops, Check::Balance);
    }

    /// A handler on an alternate stack beside a coroutine's may be taken for a call of that one: then functions are shown to
    /// end that the interrupted hook was just about to record a call of.
    #[test]
    fn every_return_is_right_with_signals_on_alternate_stacks(ops in program(ALL)) {
        try_out(ops, Check::Returns);
    }
}

/// A stack's frames are brought back to an empty return stack, and end; then the thread goes on on the stack that was left meanwhile.
#[test]
fn an_outermost_call_may_be_one_of_a_function_that_was_left() {
    let call = |n, realigned| {
        let style =
            Style { fentry: false, frame_pointer: true, traced: true, realigned, words: 0, pushed: 0, action: 0 };
        Op::Call { n, style }
    };
    let (main, other) = (THREAD_STACKS[0], 0);
    let ops = vec![
        call(1, true),
        Op::Switch(other),
        call(3, true),
        Op::Switch(main),
        Op::Return(1),
        Op::Switch(other),
        Op::Return(1),
        Op::Switch(main),
        call(1, true),
        Op::Switch(other),
        Op::Unwind(2),
        Op::Switch(main),
        call(1, false),
    ];
    try_out(ops, Check::All);
}

/// A jump leaves a function while the return stack is full: the next call, in a realigned frame below, is one more that is lost.
#[test]
fn a_jump_at_the_limit_is_noticed_at_the_next_return() {
    let style = |realigned| Style {
        fentry: false,
        frame_pointer: true,
        traced: true,
        realigned,
        words: 0,
        pushed: 0,
        action: 0,
    };
    let call = |n, realigned| Op::Call { n, style: style(realigned) };
    let (deep, up) = (call(RETURN_STACK_ENTRIES + 22, false), [3, 2, 1, 2, 3, 3, 2, 1, 1, 3, 2, 3]);
    let mut ops = vec![
        call(1, true),
        Op::Longjmp(1),
        call(1, true),
        call(1, true),
        call(2, true),
        deep,
        Op::Unwind(2),
        call(1, true),
    ];
    ops.extend(up.map(|n| if n == 1 { Op::Unwind(1) } else { Op::Return(n) }));
    ops.extend([
        call(1, true),
        call(2, true),
        call(3, true),
        Op::Return(1),
        Op::Return(1),
        Op::Unwind(4),
        Op::Longjmp(1),
        call(1, true),
    ]);
    try_out(ops, Check::All);
}

/// The frames of a stack that has gone on on another thread: a caller of which only an earlier call was left there is not brought back with
/// what it called.
#[test]
fn callers_are_brought_back_only_if_they_live() {
    let style = |fentry, realigned, words| Style {
        fentry,
        frame_pointer: !fentry,
        traced: true,
        realigned,
        words,
        pushed: 1,
        action: 0,
    };
    let call = |n, style| Op::Call { n, style };
    // The thread before has ended within a call with the frame of the present one's.
    let ended = vec![
        call(1, style(false, true, 0)),
        Op::EndThread,
        call(2, style(true, false, 0)),
        Op::Switch(0),
        Op::Thread(1),
        call(1, style(false, false, 0)),
        Op::Switch(THREAD_STACKS[0]),
        Op::Return(1),
        Op::Return(1),
    ];
    // A jump has left it.
    let jumped = vec![
        Op::Switch(5),
        call(3, style(false, false, 14)),
        Op::Longjmp(2),
        call(2, style(true, false, 0)),
        Op::Switch(0),
        Op::Thread(1),
        Op::Switch(5),
        Op::Unwind(1),
        Op::Return(1),
    ];
    for ops in [ended, jumped] {
        try_out(ops, Check::Balance);
    }
}

/// A stack is empty again, and its first call has the frame of one that a jump has left on it: that one is still at the bottom of the return
/// stack when the later one is left, and is not taken for it.
#[test]
fn what_goes_on_is_the_later_call_with_a_frame() {
    let style = |traced, realigned| Style {
        fentry: false,
        frame_pointer: true,
        traced,
        realigned,
        words: 0,
        pushed: 0,
        action: 0,
    };
    let call = |n, traced, realigned| Op::Call { n, style: style(traced, realigned) };
    let ops = vec![
        Op::Thread(1),
        call(1, false, true),
        Op::Switch(2),
        call(3, true, true),
        Op::Longjmp(1),
        Op::Unwind(1),
        Op::TailCall(style(false, true)),
        Op::Switch(7),
        call(1, true, true),
        Op::Switch(2),
        Op::Longjmp(1),
        call(2, true, false),
        Op::Return(1),
        Op::Switch(7),
        call(1, true, false),
        Op::Switch(2),
        call(1, true, false),
        Op::Return(2),
    ];
    try_out(ops, Check::Returns);
}
