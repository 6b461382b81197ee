//! Filtered recording against a naive model: trees of random calls, and random filters.

use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use proptest::test_runner::{Config, FailurePersistence, RngSeed};
use rftrace_model::abi::{MAX_CHUNK_BYTES, action, kind, site_slot, state};
use rftrace_model::arch::{self, Call};
use rftrace_model::lab::{self, Event, Lab, Options};
use rftrace_model::steer;
use rftrace_model::sync::atomic::AtomicU64;

/// Functions of a program, and the first one's address.
const N_FUNCTIONS: usize = 8;
const FUNCTIONS: usize = 0x40_0000;
/// A call that takes its time takes this many ticks, far more than all hooks together.
const LONG: u64 = 1_000_000;
const STACK_WORDS: usize = 1 << 16;

/// A call, and those in it.
#[derive(Clone, Debug)]
struct Node {
    function: usize,
    takes_time: bool,
    fentry: bool,
    /// Words of its frame; some have more than the tracer takes for nested without a look.
    words: usize,
    calls: Vec<Node>,
}

fn node() -> impl Strategy<Value = Node> {
    let words = prop_oneof![12 => 0..24usize, 1 => 2_000..2_500usize];
    let own = (0..N_FUNCTIONS, prop::bool::weighted(0.1), any::<bool>(), words);
    let leaf = own.clone().prop_map(|(function, takes_time, fentry, words)| Node {
        function,
        takes_time,
        fentry,
        words,
        calls: Vec::new(),
    });
    leaf.prop_recursive(8, 120, 5, move |inner| {
        (own.clone(), prop::collection::vec(inner, 0..5)).prop_map(|((function, takes_time, fentry, words), calls)| {
            Node { function, takes_time, fentry, words, calls }
        })
    })
}

/// Contents of [`FilterControl`](rftrace_model::abi::FilterControl).
#[derive(Clone, Debug)]
struct Filter {
    /// The action for each function; `None`: not in the table.
    actions: [Option<u8>; N_FUNCTIONS],
    default_action: u8,
    only_within: bool,
    max_depth: Option<u64>,
    has_minimum: bool,
}

fn filter() -> impl Strategy<Value = Filter> {
    let any_action = prop_oneof![
        6 => Just(action::RECORD),
        3 => Just(action::SKIP),
        1 => Just(action::POINT),
        1 => Just(action::INTO),
        1 => Just(action::NOT_INTO),
    ];
    let actions = prop::array::uniform8(prop::option::weighted(0.8, any_action));
    let default_action = prop_oneof![3 => Just(action::RECORD), 1 => Just(action::SKIP)];
    let max_depth = prop::option::weighted(0.3, 1..6u64);
    (actions, default_action, any::<bool>(), max_depth, any::<bool>()).prop_map(
        |(actions, default_action, only_within, max_depth, has_minimum)| Filter {
            // Without a chosen function nothing would be recorded.
            only_within: only_within && actions.contains(&Some(action::INTO)),
            actions,
            default_action,
            max_depth,
            has_minimum,
        },
    )
}

impl Filter {
    fn action(&self, function: usize) -> u8 {
        self.actions[function].unwrap_or(self.default_action)
    }

    fn min_ticks(&self) -> u64 {
        if self.has_minimum { LONG / 2 } else { 0 }
    }

    /// Gives the filter to the tracer. The table must live as long as it is used.
    fn apply(&self, lab: &Lab, table: &[AtomicU64]) {
        let mask = table.len() - 1;
        for (function, action) in self.actions.iter().enumerate() {
            let Some(action) = action else { continue };
            let mut slot = site_slot(address(function), mask);
            while table[slot].load(Relaxed) != 0 {
                slot = (slot + 1) & mask;
            }
            table[slot].store((address(function) as u64) << 16 | u64::from(*action), Relaxed);
        }
        let control = &lab.control().filter;
        control.sites.store(table.as_ptr().cast_mut(), Relaxed);
        control.sites_mask.store(mask, Relaxed);
        control.default_action.store(self.default_action, Relaxed);
        let wanted = if self.only_within { state::IN as u32 } else { 0 };
        control.wanted.store(wanted, Relaxed);
        control.decisive.store(wanted | state::OUT as u32, Relaxed);
        let limit = self.max_depth.map_or(state::DEPTH_MASK, |depth| depth * state::DEPTH_ONE);
        control.depth_limit.store(limit as u32, Relaxed);
        control.min_ticks.store(self.min_ticks(), Relaxed);
        lab.filter(true);
    }

    /// The events of a call, and whether its duration is long. `within`: in a function of `below`; `depth`: recorded ones
    /// around it.
    fn expected(&self, node: &Node, within: bool, out: bool, depth: u64) -> (Vec<Event>, bool) {
        let action = self.action(node.function);
        let out_here = out || action == action::NOT_INTO;
        let starts_within = action == action::INTO && !within;
        let within_here = within || action == action::INTO;
        let depth = if starts_within && !out_here { 0 } else { depth };
        let passes = !out_here
            && ![action::SKIP, action::NOT_INTO].contains(&action)
            && (within_here || !self.only_within)
            && self.max_depth.is_none_or(|max| depth < max);
        let hooked = passes && action != action::POINT;
        let mut events = Vec::new();
        let mut is_long = node.takes_time;
        for call in &node.calls {
            let within = if hooked { within_here } else { within };
            let (inner, long) = self.expected(call, within, out_here, if hooked { depth + 1 } else { depth });
            is_long |= long;
            events.extend(inner);
        }
        let address = address(node.function) as u64;
        if passes && !hooked {
            events.splice(0..0, [Event::Entry(address), Event::Exit(address)]);
        } else if passes && (is_long || !events.is_empty() || !self.has_minimum) {
            events.insert(0, Event::Entry(address));
            events.push(Event::Exit(address));
        }
        (events, is_long)
    }
}

fn address(function: usize) -> usize {
    FUNCTIONS + function * 24
}

/// The stack of the program that runs.
struct Stack {
    words: Vec<usize>,
    n_calls: usize,
}

impl Stack {
    /// Calls a function with the stack pointer at a word; lets it do what it does and return.
    fn call(&mut self, node: &Node, stack_pointer: usize, frame_pointer: usize) {
        self.n_calls += 1;
        let parent_ip = 0x7000_0000_0000 + self.n_calls;
        let base = self.words.as_mut_ptr().expose_provenance();
        let slot = base + (stack_pointer - 1) * 8;
        let frame = stack_pointer - 2;
        let inner = frame - node.words;
        write(slot, parent_ip);
        write(slot - 8, frame_pointer);
        let child_ip = address(node.function);
        let call = if node.fentry {
            Call { parent_loc: slot, child_ip, stack_pointer: slot, frame_pointer, static_chain: 0 }
        } else {
            let stack_pointer = base + inner * 8;
            Call { parent_loc: slot, child_ip, stack_pointer, frame_pointer: slot - 8, static_chain: 0 }
        };
        // SAFETY: all in the memory of the stack.
        unsafe { arch::entry(call) };
        for call in &node.calls {
            self.call(call, inner, slot - 8);
        }
        if node.takes_time {
            arch::spend(LONG);
        }
        let mut ip = read(slot);
        while ip == arch::trampoline() {
            ip = arch::exit(slot, 0);
        }
        assert_eq!(ip, parent_ip, "{node:?} returns to the wrong place");
    }
}

fn read(address: usize) -> usize {
    // SAFETY: all addresses here are words of the stack, which is exposed.
    unsafe { (address as *const usize).read() }
}

fn write(address: usize, value: usize) {
    // SAFETY: as above.
    unsafe { (address as *mut usize).write(value) };
}

fn check(nodes: &[Node], filter: &Filter, buffer_bytes: usize) {
    let _alone = lab::alone();
    steer::set_identity(Some(|| 0));
    let table: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
    let lab = Lab::new(Options { buffer_bytes, n_blocks: 2, n_left_buckets: 4, ring: false });
    filter.apply(&lab, &table);
    lab.enable();
    let mut stack = Stack { words: vec![0; STACK_WORDS], n_calls: 0 };
    for node in nodes {
        stack.call(node, STACK_WORDS - 1_024, 0);
    }
    lab.disable();
    steer::set_identity(None);
    let expected: Vec<Event> = nodes.iter().flat_map(|node| filter.expected(node, false, false, 0).0).collect();
    let found = lab.events_of_at_least(filter.min_ticks()).into_values().next().unwrap_or_default();
    assert_eq!(found, expected);
    // Calls that were too short are not even in the buffer, unless the entry was the last record of a chunk.
    let segments = lab.segments().into_values().next().unwrap_or_default();
    let n_records = |wanted: u64| {
        let words = segments.iter().flat_map(|segment| &segment.records).map(|&(_, word)| word);
        words.filter(|word| word & (kind::MASK | kind::POINT) == wanted && word & state::HIDDEN == 0).count()
    };
    let n_expected = expected.iter().filter(|event| matches!(event, Event::Exit(_))).count();
    let n_found = n_records(kind::EXIT) + n_records(kind::ENTRY | kind::POINT);
    assert!(n_found - n_expected <= 16 * segments.len().saturating_sub(1), "{n_found} calls are in the buffer");
}

fn config() -> Config {
    let asked = std::env::var("RFTRACE_MODEL_CASES").ok().map(|cases| cases.parse().expect("a number"));
    let cases = if cfg!(miri) { 2 } else { asked.unwrap_or(3_000) };
    let failure_persistence: Option<Box<dyn FailurePersistence>> = None;
    let rng_seed = if asked.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) };
    Config { cases, failure_persistence, rng_seed, max_shrink_iters: 10_000, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    /// In one chunk all that is too short is taken back.
    #[test]
    fn what_the_filter_says_is_recorded(nodes in prop::collection::vec(node(), 1..4), filter in filter()) {
        check(&nodes, &filter, 16 * MAX_CHUNK_BYTES);
    }

    /// Calls begin and end at the ends of chunks.
    #[test]
    fn also_where_chunks_end(nodes in prop::collection::vec(node(), 1..4), filter in filter()) {
        check(&nodes, &filter, 256 * 512);
    }
}
