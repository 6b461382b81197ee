//! How the way leads from one frame to the next one outside: by a rule for each return address, found out once.
//!
//! framehop knows that, and has rules of its own, but none that it lets be read. So it is asked, twice, with made-up stacks: what it reads of them and where it
//! comes to tells the rule. Where that is none of the simple ones, or something is not as it should be, framehop goes the way itself each time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder};

use super::extent::Stack;
use crate::modules::Known;
use crate::room::Room;

/// A frame on the way outwards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Where the return address is, what it is, and the frame pointer behind it.
    pub(super) slot: u64,
    pub(super) address: u64,
    pub(super) bp: u64,
}

/// The way from a frame to the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rule {
    /// From the frame's slot to the next one; if `is_by_bp` from where the frame pointer points to.
    distance: i32,
    is_by_bp: bool,
    /// So many words below the next slot the frame pointer is saved; 0: it is the same.
    bp_below: u8,
}

impl Rule {
    /// That leads nowhere.
    const NONE: Self = Self { distance: 0, is_by_bp: false, bp_below: 0 };

    /// The next frame; `None` where it is not known from the rule alone, or there is none.
    #[inline(always)]
    fn next(self, stack: &Stack, step: Step) -> Option<Step> {
        let base = if self.is_by_bp { step.bp } else { step.slot };
        let slot = base.wrapping_add_signed(self.distance.into());
        // The place of the return address itself if the frame pointer is the same: what is there is not used then.
        let [address, saved] = stack.with_lower(slot, u64::from(self.bp_below))?;
        let bp = if self.bp_below == 0 { step.bp } else { saved };
        (slot > step.slot && address != 0).then_some(Step { slot, address, bp })
    }
}

/// The rules of one thread.
pub(super) struct Rules {
    /// Each at the place that its address's hash says: the first `1 << bits` are used. What is behind takes no memory as long as nobody writes there.
    known: Box<[Entry; 1 << MOST_BITS]>,
    bits: u32,
    /// Frames since it was looked whether there are enough places, and addresses that were in others' way.
    n_frames: usize,
    n_collisions: usize,
    unwinder: CacheX86_64<Room>,
}

const LEAST_BITS: u32 = 9;
const MOST_BITS: u32 = 12;

#[derive(Clone, Copy)]
struct Entry {
    /// 0 for none.
    address: u64,
    rule: Rule,
}

impl Rules {
    /// The most bytes of these and framehop's cache of them.
    pub(super) const BYTES: usize = size_of::<[Entry; 1 << MOST_BITS]>() + (24 << 10);

    /// None. To be called where there is memory for them, and on a stack with room for framehop's.
    pub(super) fn new() -> Self {
        // SAFETY: zero is a value of each field.
        let known = unsafe { Box::new_zeroed().assume_init() };
        Self { known, bits: LEAST_BITS, n_frames: 0, n_collisions: 0, unwinder: CacheX86_64::new_in() }
    }

    /// Forgets them, as other modules may be where some were.
    #[cold]
    pub(super) fn forget(&mut self) {
        self.known[..1 << self.bits].fill(Entry { address: 0, rule: Rule::NONE });
    }

    /// So many frames were walked.
    #[inline(always)]
    pub(super) fn walked(&mut self, n_frames: usize) {
        self.n_frames += n_frames;
    }

    #[inline(always)]
    fn place(&self, address: u64) -> usize {
        let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - self.bits)) as usize % (1 << MOST_BITS)
    }

    /// The next frame outside of that one, if there is a rule; else it is to be asked for.
    #[inline(always)]
    pub(super) fn next(&self, stack: &Stack, step: Step) -> Option<Step> {
        let entry = self.known[self.place(step.address)];
        if entry.address == step.address { entry.rule.next(stack, step) } else { None }
    }

    /// Has framehop go the way, after its rule is found out. `Err` if framehop has failed: it is not to be asked again.
    #[cold]
    #[inline(never)]
    pub(super) fn ask(&mut self, known: &Known, stack: &Stack, step: &Step) -> Result<Option<Step>, Failed> {
        let ask = || {
            let entry = &self.known[self.place(step.address)];
            if entry.address != step.address {
                if entry.address != 0 {
                    self.collided();
                }
                let rule = self.find_out(known, step.address);
                self.known[self.place(step.address)] = Entry { address: step.address, rule };
            }
            unwind(known, &mut self.unwinder, *step, |place| stack.read(place))
        };
        catch_unwind(AssertUnwindSafe(ask)).map_err(|_| Failed)
    }

    /// An address is in another one's way: twice as many places, if that is often so.
    fn collided(&mut self) {
        const BETWEEN_LOOKS: usize = 1024;
        /// One frame of so many.
        const OFTEN: usize = 50;

        self.n_collisions += 1;
        if self.n_frames > BETWEEN_LOOKS {
            if self.n_collisions > self.n_frames / OFTEN && self.bits < MOST_BITS {
                self.bits += 1;
            }
            (self.n_frames, self.n_collisions) = (0, 0);
        }
    }

    fn find_out(&mut self, known: &Known, address: u64) -> Rule {
        // Far from each other, and not aligned in the same way: what depends on more than distances differs.
        let stacks = [
            MadeUp { slot: 0x7123_0000_4568, bp: 0x7127_0000_1230, key: 0x1357_9bdf_0246_8ace },
            MadeUp { slot: 0x7355_0040_8770, bp: 0x7359_1000_0808, key: 0x2468_ace0_1357_9bdf },
        ];
        let [one, other] = stacks.map(|stack| stack.rule(known, &mut self.unwinder, address));
        if one == other { one } else { Rule::NONE }
    }
}

/// framehop has failed in a way of which nothing is known.
#[derive(Debug)]
pub(super) struct Failed;

/// The next frame, as framehop has it.
fn unwind(
    known: &Known,
    cache: &mut CacheX86_64<Room>,
    step: Step,
    mut read: impl FnMut(u64) -> Result<u64, ()>,
) -> Option<Step> {
    let mut state = UnwindRegsX86_64::new(step.address, step.slot.wrapping_add(8), step.bp);
    let from = FrameAddress::from_return_address(step.address)?;
    let address = known.unwinder.unwind_frame(from, &mut state, cache, &mut read).ok().flatten()?;
    Some(Step { slot: state.sp().wrapping_sub(8), address, bp: state.bp() })
}

/// A stack that is not there: what is in each place tells which one that is.
struct MadeUp {
    slot: u64,
    bp: u64,
    key: u64,
}

impl MadeUp {
    /// The word at a place; and the place of a word.
    fn other(&self, word: u64) -> u64 {
        word ^ self.key
    }

    /// How framehop goes from this address.
    fn rule(&self, known: &Known, cache: &mut CacheX86_64<Room>, address: u64) -> Rule {
        /// Functions have no larger frames, or are left to framehop.
        const MOST: u64 = 1 << 24;

        let step = Step { slot: self.slot, address, bp: self.bp };
        let mut find = || {
            let next = unwind(known, cache, step, |place| Ok(self.other(place)))?;
            let is_by_bp = next.slot.abs_diff(self.bp) < MOST;
            let distance = next.slot.wrapping_sub(if is_by_bp { self.bp } else { self.slot }).cast_signed();
            let bp_below = match next.bp {
                bp if bp == self.bp => 0,
                bp => Some(next.slot.wrapping_sub(self.other(bp))).filter(|&bytes| bytes % 8 == 0 && bytes > 0)? / 8,
            };
            let is_return = next.address == self.other(next.slot) && distance.unsigned_abs() < MOST;
            let rule = Rule { distance: distance.try_into().ok()?, is_by_bp, bp_below: bp_below.try_into().ok()? };
            is_return.then_some(rule)
        };
        find().unwrap_or(Rule::NONE)
    }
}
