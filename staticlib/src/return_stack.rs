//! The return stack of a thread, and the only ways to change it.
//!
//! An entry is *reserved* by moving `sp` over it, then *published*: its `frame` is written last. A pop clears `frame`
//! first and moves `sp` last. So a signal handler finds only entries that are whole, or belong to nobody yet.
//!
//! Another thread running an entry's frame may *claim* it, in two steps, each a compare-exchange of `frame`. First a
//! mark of this claim alone replaces the frame. Then, if the entry is still the same as before, the mark is made to
//! hold. Until then the entry is its owner's, with all rights, and others may put their own mark there; then the claim
//! never holds. Afterwards the owner drops the entry. So an entry popped meanwhile, and used for another call with the
//! same frame, is never taken for the old one; its sequence number tells.
//!
//! **Invariant**: entries at or above `sp` have frame 0; the sentinel's below the stack is odd or 0, no function's.
//!
//! **Invariant**: a moving entry is written to its new place before it leaves the old one. So a walk of the stack from
//! the innermost entry on finds those moving down in it.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::compiler_fence;
use core::{iter, ptr};

use crate::abi::{ReturnEntry, ThreadBlock, UNHOOKED, kind};
use crate::arch;

/// The return stack of a thread.
#[derive(Clone, Copy)]
pub(crate) struct ReturnStack<'a>(&'a ThreadBlock);

/// An entry on a return stack.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a>(&'a ReturnEntry);

/// The content of an entry: its open function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) frame: usize,
    pub(crate) parent_ip: usize,
    pub(crate) exit_word: u64,
    pub(crate) sequence: u64,
}

impl Open {
    /// True if the function was called by a jump at the end of another one: then it returns to the trampoline.
    pub(crate) fn is_tail_call(&self) -> bool {
        arch::is_trampoline(self.parent_ip)
    }

    /// True if its return is not hooked.
    pub(crate) fn is_unhooked(&self) -> bool {
        arch::HAS_SLEDS && self.parent_ip & UNHOOKED != 0
    }

    /// True if its frame may live, by the word in its slot, while `running` is the running frame on the same stack.
    pub(crate) fn may_live(&self, running: usize) -> bool {
        match self.is_unhooked() {
            true => arch::may_return_to(running, self.frame, self.parent_ip & !UNHOOKED),
            false => arch::may_be_hooked(running, self.frame),
        }
    }
}

/// True if `inner` lies at or below `outer` by no more than a frame.
pub(crate) fn is_near(inner: usize, outer: usize) -> bool {
    outer.wrapping_sub(inner) <= arch::MAX_FRAME_BYTES
}

/// True if `word`, the `frame` of an entry, stands for an open function with this frame.
fn is_open(word: usize, frame: usize) -> bool {
    word == frame || Claim::of(word).is_some_and(|claim| !claim.holds() && claim.frame() == frame)
}

/// The word in place of a frame claimed by another thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Claim(usize);

impl Claim {
    /// Set in each: no frame is odd.
    const MARK: usize = 1 << 0;
    const HOLDS: usize = 1 << 1;
    /// The bits of a frame to tell it from others: the upper ones are alike.
    const FRAME: usize = (1 << 48) - 8;
    /// Set in each, and the next bit in none: no address near a stack, so the hooks' fast paths leave it alone.
    const FAR: usize = 1 << 63;
    const NUMBERS: usize = (1 << 14) - 1;
    /// For an entry that is nobody's: it is dropped when it is the innermost one.
    const NOBODY: Self = Self(Self::MARK | Self::HOLDS | Self::FAR);

    /// The first step of the claim with this number. `None`: the frame does not fit in.
    fn new(frame: usize, number: u64) -> Option<Self> {
        let number = (number as usize & Self::NUMBERS) << 48;
        let claim = Self((frame & Self::FRAME) | Self::MARK | Self::FAR | number);
        (claim.frame() == frame).then_some(claim)
    }

    fn of(word: usize) -> Option<Self> {
        (word & Self::MARK != 0).then_some(Self(word))
    }

    fn holding(self) -> Self {
        Self(self.0 | Self::HOLDS)
    }

    fn holds(self) -> bool {
        self.0 & Self::HOLDS != 0
    }

    fn frame(self) -> usize {
        arch::whole_address(self.0 & Self::FRAME)
    }
}

impl<'a> ReturnStack<'a> {
    /// The return stack of a thread.
    pub(crate) fn of(block: &'a ThreadBlock) -> Self {
        Self(block)
    }

    pub(crate) fn block(self) -> &'a ThreadBlock {
        self.0
    }

    pub(crate) fn is(self, other: Self) -> bool {
        ptr::eq(self.0, other.0)
    }

    /// The entries, innermost first.
    pub(crate) fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        let base = self.0.base.load(Relaxed);
        let mut place = self.0.sp.load(Relaxed);
        iter::from_fn(move || {
            (place > base).then(|| {
                place = place.wrapping_sub(1);
                // SAFETY: between `base` and `sp`.
                Entry(unsafe { &*place })
            })
        })
    }

    /// The innermost entry.
    pub(crate) fn top(self) -> Option<Entry<'a>> {
        self.entries().next()
    }

    /// The entries above `outer`, innermost first. All for `None`.
    pub(crate) fn above(self, outer: Option<Entry<'a>>) -> impl Iterator<Item = Entry<'a>> {
        self.entries().take_while(move |&entry| outer != Some(entry))
    }

    /// The entry of the caller of `inner`, if there is one.
    pub(crate) fn below(self, inner: Entry<'a>) -> Option<Entry<'a>> {
        self.entries().skip_while(|&entry| entry != inner).nth(1)
    }

    /// The innermost entry of the function with this frame.
    pub(crate) fn find(self, frame: usize) -> Option<Entry<'a>> {
        self.entries().find(|entry| entry.frame() == Some(frame))
    }

    /// The state passed on by the innermost open function to its calls; see [`state`](crate::abi::state).
    pub(crate) fn state(self) -> u64 {
        self.innermost().exit_word.load(Relaxed)
    }

    /// The innermost entry, or the sentinel.
    fn innermost(self) -> &'a ReturnEntry {
        // SAFETY: `sp` is at least `base`, and the sentinel lies below.
        unsafe { &*self.0.sp.load(Relaxed).wrapping_sub(1) }
    }

    /// The word of the innermost entry, or of the sentinel: the hooks' fast paths compare it.
    pub(crate) fn top_word(self) -> usize {
        self.innermost().frame.load(Relaxed)
    }

    /// True if there is room for another entry.
    pub(crate) fn has_room(self) -> bool {
        self.0.sp.load(Relaxed) < self.0.limit.load(Relaxed)
    }

    /// Reserves the next entry for a function with this frame. There has to be room. From here on it counts as open
    /// unless `exit_word` has it hidden.
    pub(crate) fn reserve(self, frame: usize, exit_word: u64) -> Reserved<'a> {
        let place = self.0.sp.load(Relaxed);
        if place == self.0.base.load(Relaxed) {
            // The apparent place of the sentinel decides about outermost calls: the fast path takes those around this
            // one.
            let around = frame.wrapping_add(arch::MAX_FRAME_BYTES / 2);
            self.innermost().frame.store(around | 1, Relaxed);
        }
        // SAFETY: the entry lies in this thread's stack, below its limit.
        let entry = unsafe { &*place };
        entry.exit_word.store(exit_word, Relaxed);
        compiler_fence(SeqCst);
        self.0.sp.store(place.wrapping_add(1), Relaxed);
        compiler_fence(SeqCst);
        Reserved(entry)
    }

    /// Reserves entries for so many frames at once, if there is room for them.
    pub(crate) fn reserve_many(self, n_frames: usize) -> Option<ManyReserved<'a>> {
        let first = self.0.sp.load(Relaxed);
        let end = first.wrapping_add(n_frames);
        if end > self.0.limit.load(Relaxed) {
            return None;
        }
        if first == self.0.base.load(Relaxed) {
            // When they have returned, an outermost call may be of a function left meanwhile.
            self.innermost().frame.store(0, Relaxed);
        }
        self.0.sp.store(end, Relaxed);
        compiler_fence(SeqCst);
        Some(ManyReserved { stack: self, first, end, place: end })
    }

    /// Takes the innermost entry away if it is still `top`: a signal handler in between may have done it.
    pub(crate) fn pop(self, top: Entry<'a>) {
        let end = self.0.sp.load(Relaxed);
        let place = end.wrapping_sub(1);
        if ptr::eq(place, top.0) {
            // First: a stack lower than `busy_floor` means a slow path left for good.
            if self.0.busy_floor.load(Relaxed) > place {
                self.0.busy_floor.store(place, Relaxed);
            }
            compiler_fence(SeqCst);
            top.0.frame.store(0, Relaxed);
            compiler_fence(SeqCst);
            let _ = self.0.sp.compare_exchange(end, place, Relaxed, Relaxed);
        }
    }

    /// Takes away an entry other than the innermost one: moves those above it one down.
    #[cold]
    pub(crate) fn close_gap(self, entry: Entry<'a>) {
        let end = self.0.sp.load(Relaxed);
        let mut to = ptr::from_ref(entry.0);
        let mut from = to.wrapping_add(1);
        while from < end {
            // SAFETY: both lie between `base` and `sp`.
            let (to_entry, from_entry) = unsafe { (&*to, &*from) };
            to_entry.frame.store(0, Relaxed);
            compiler_fence(SeqCst);
            let Open { parent_ip, exit_word, sequence, .. } = Entry(from_entry).read();
            to_entry.parent_ip.store(parent_ip, Relaxed);
            to_entry.exit_word.store(exit_word, Relaxed);
            to_entry.sequence.store(sequence, Relaxed);
            to_entry.frame.store(from_entry.frame.load(Relaxed), Release);
            to = from;
            from = from.wrapping_add(1);
        }
        if let Some(top) = self.top() {
            self.pop(top);
        }
    }
}

/// A reserved entry that is nobody's yet.
pub(crate) struct Reserved<'a>(&'a ReturnEntry);

impl<'a> Reserved<'a> {
    /// Gives it to a function.
    pub(crate) fn publish(self, open: &Open) {
        self.0.sequence.store(open.sequence, Relaxed);
        self.0.exit_word.store(open.exit_word, Relaxed);
        self.0.parent_ip.store(open.parent_ip, Relaxed);
        self.0.frame.store(open.frame, Release);
        compiler_fence(SeqCst);
    }
}

/// Reserved entries that are nobody's yet. Functions get them from the innermost one on.
pub(crate) struct ManyReserved<'a> {
    stack: ReturnStack<'a>,
    first: *mut ReturnEntry,
    end: *mut ReturnEntry,
    /// All from here on are published.
    place: *mut ReturnEntry,
}

impl<'a> ManyReserved<'a> {
    /// Gives the next one further out to a function. Returns false if none is left.
    pub(crate) fn publish(&mut self, open: &Open) -> bool {
        if self.place <= self.first {
            return false;
        }
        self.place = self.place.wrapping_sub(1);
        // SAFETY: one of the reserved entries.
        Reserved(unsafe { &*self.place }).publish(open);
        true
    }

    /// Marks the entry published last as nobody's again.
    pub(crate) fn take_last_back(&mut self) {
        // SAFETY: one of the reserved and published entries. If another thread has claimed it meanwhile it is gone too.
        unsafe { &*self.place }.frame.store(Claim::NOBODY.0, Release);
    }

    /// Marks the rest as nobody's, so that it is dropped. Returns all, outermost first.
    pub(crate) fn finish(mut self) -> impl Iterator<Item = Entry<'a>> {
        let open = Open { frame: Claim::NOBODY.0, parent_ip: 0, exit_word: kind::LEFT, sequence: 0 };
        while self.publish(&open) {}
        let (mut place, end) = (self.first, self.end);
        let stack = self.stack;
        iter::from_fn(move || {
            // A signal handler may have taken some away.
            (place < end && place < stack.0.sp.load(Relaxed)).then(|| {
                // SAFETY: one of the reserved entries.
                let entry = Entry(unsafe { &*place });
                place = place.wrapping_add(1);
                entry
            })
        })
    }
}

impl PartialEq for Entry<'_> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Entry<'_> {
    /// The frame of its function; `None` if it is only reserved, or another thread has it.
    pub(crate) fn frame(self) -> Option<usize> {
        let word = self.0.frame.load(Acquire);
        match Claim::of(word) {
            None => (word != 0).then_some(word),
            Some(claim) => (!claim.holds()).then(|| claim.frame()),
        }
    }

    /// True if it is nobody's yet: a hook was interrupted when it had just reserved it.
    pub(crate) fn is_reserved(self) -> bool {
        self.0.frame.load(Relaxed) == 0
    }

    /// True if another thread has it.
    pub(crate) fn is_gone(self) -> bool {
        Claim::of(self.0.frame.load(Acquire)).is_some_and(Claim::holds)
    }

    /// Claims it for the thread running its frame, with a number that no other claim has. Fails if it is not `open` any
    /// more.
    pub(crate) fn claim_as(self, open: &Open, number: u64) -> bool {
        let Some(claim) = Claim::new(open.frame, number) else {
            return false;
        };
        let word = &self.0.frame;
        if word.fetch_update(AcqRel, Acquire, |now| is_open(now, open.frame).then_some(claim.0)).is_err() {
            return false;
        }
        // As long as the mark is there nobody writes to the entry.
        if self.0.sequence.load(Acquire) != open.sequence {
            let _ = word.compare_exchange(claim.0, open.frame, AcqRel, Relaxed);
            return false;
        }
        word.compare_exchange(claim.0, claim.holding().0, AcqRel, Relaxed).is_ok()
    }

    /// Takes it from its own thread's stack; it stays reserved there. Fails if another thread was faster: if its claim
    /// holds.
    pub(crate) fn withdraw(self, frame: usize) -> bool {
        self.0.frame.fetch_update(AcqRel, Acquire, |word| is_open(word, frame).then_some(0)).is_ok()
    }

    /// Its content, if it is published.
    pub(crate) fn open(self) -> Option<Open> {
        let open = self.read();
        // Its thread may have moved it meanwhile.
        (self.frame()? == open.frame && self.0.sequence.load(Relaxed) == open.sequence).then_some(open)
    }

    /// The same for an entry of the own thread; another thread may have claimed it.
    pub(crate) fn read(self) -> Open {
        let word = self.0.frame.load(Acquire);
        Open {
            frame: Claim::of(word).map_or(word, Claim::frame),
            sequence: self.0.sequence.load(Acquire),
            parent_ip: self.0.parent_ip.load(Acquire),
            exit_word: self.0.exit_word.load(Acquire),
        }
    }

    pub(crate) fn sequence(self) -> u64 {
        self.0.sequence.load(Acquire)
    }

    pub(crate) fn exit_word(self) -> u64 {
        self.0.exit_word.load(Relaxed)
    }

    /// Marks its exit as recorded. Returns the word from before.
    pub(crate) fn mark_left(self) -> u64 {
        self.0.exit_word.fetch_or(kind::LEFT, Relaxed)
    }

    /// Marks its function as entered again.
    pub(crate) fn unmark_left(self) {
        self.0.exit_word.fetch_and(!kind::LEFT, Relaxed);
    }

    /// True if it lies further out than `place`.
    pub(crate) fn is_below(self, place: *const ReturnEntry) -> bool {
        ptr::from_ref(self.0) < place
    }
}
