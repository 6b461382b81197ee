//! Branches at the beginnings and ends of functions, and hooks in XRay's sleds, for a running program: a table that the
//! library in the program passes to the outside process that writes them.
//!
//! Not here: the code to which a branch leads (`rftrace-frontend`), and the moment of writing (`rftrace-attach`).

use alloc::vec::Vec;

/// The size of a branch in bytes.
pub const BRANCH_BYTES: usize = 5;
/// The maximum size in bytes of the instructions that a branch displaces: the last one may begin in the last byte of
/// the branch, and the end of a short function may follow with instructions of its own.
pub const MOST_DISPLACED_BYTES: usize = 40;
/// The size of an encoded [`Branch`] in bytes.
pub const ENTRY_BYTES: usize = 64;

/// The symbols of runtimes that walk stacks by return addresses, and take replaced ones for their own: OCaml, V8, Java,
/// gccgo, Go, .NET, Mono and Julia.
pub const RUNTIMES: [&str; 9] = [
    "caml_startup",
    "_ZN2v87Isolate10GetCurrentEv",
    "_ZN2v82V810InitializeEi",
    "JNI_CreateJavaVM",
    "runtime_mstart",
    "runtime.mstart",
    "coreclr_initialize",
    "mono_jit_init",
    "jl_init",
];

/// The size of a sled in bytes.
pub const SLED_BYTES: usize = 11;
/// The size in bytes of a conditional jump by a distance of four bytes.
pub const CONDITION_BYTES: usize = 6;

/// The opcode of a jump by a distance of four bytes.
const JUMP: u8 = 0xe9;
/// A call by such a distance, as long as a sled. So a thread is before it or behind it, and returns to the sled's
/// own target: the bytes within may become anything again. (Assemblers make calls longer in the same way: prefixes
/// without meaning here.)
const LONG_CALL: [u8; SLED_BYTES - 4] = [0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x48, 0xe8];

/// The kind of place at which code is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// The first instructions of a function. They become a jump.
    Function,
    /// A sled at the beginning of a function. It becomes a call.
    Entry,
    /// A sled at a return. It becomes a jump to code that returns in its place.
    Exit,
    /// A sled before a jump to another function. It becomes a call.
    TailCall,
    /// A return, or a jump to another function, with the instructions before it. They become a jump.
    End,
    /// A conditional jump to another function. Its distance changes.
    Condition,
}

/// A change of code: a branch, or the hook in a sled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The address of the changed code: of the function's first instruction, of the sled, or of an end.
    pub function: u64,
    /// The target of the branch or call.
    pub stub: u64,
    /// The kind of place.
    pub place: Place,
    /// The bytes displaced by the branch, and those between them and its end.
    displaced: [u8; MOST_DISPLACED_BYTES],
    n_displaced: u8,
    /// For an instruction that begins within the branch, by its distance from the function's beginning less one: the
    /// distance of its copy from the stub's beginning. 0 without an instruction there.
    copies: [u8; BRANCH_BYTES - 1],
    /// True if the branch is wanted now; false for one from an earlier choice.
    pub is_wanted: bool,
}

impl Branch {
    /// Creates the branch of a function in place of the original bytes `displaced`. `copies` pairs the distance of each
    /// displaced instruction from the function's beginning with the distance of its copy from the stub's. `None` if
    /// there are fewer bytes than a branch has, or more than the table can hold.
    #[must_use]
    pub fn new(
        function: u64,
        stub: u64,
        displaced: &[u8],
        copies: impl IntoIterator<Item = (usize, usize)>,
    ) -> Option<Self> {
        let mut bytes = [0; MOST_DISPLACED_BYTES];
        bytes.get_mut(..displaced.len()).filter(|bytes| bytes.len() >= BRANCH_BYTES)?.copy_from_slice(displaced);
        let n_displaced = displaced.len() as u8;
        let copies_at = [0; BRANCH_BYTES - 1];
        let place = Place::Function;
        let mut branch =
            Self { function, stub, place, displaced: bytes, n_displaced, copies: copies_at, is_wanted: false };
        for (from, to) in copies {
            let place = from.checked_sub(1).and_then(|place| branch.copies.get_mut(place));
            if let Some(place) = place.filter(|place| **place == 0) {
                *place = u8::try_from(to).ok()?;
            }
        }
        Some(branch)
    }

    /// Creates the hook in a sled with these original bytes; `None` under the conditions of [`new`](Self::new).
    #[must_use]
    pub fn of_sled(sled: u64, hook: u64, place: Place, bytes: &[u8; SLED_BYTES]) -> Option<Self> {
        Self::new(sled, hook, bytes, [])?.at(place)
    }

    /// Returns this change for another kind of place; `None` if that has more bytes.
    #[must_use]
    pub fn at(self, place: Place) -> Option<Self> {
        Some(Self { place, ..self }).filter(|branch| branch.n_changed() <= branch.displaced().len())
    }

    /// Returns the number of bytes that the change overwrites.
    #[must_use]
    pub fn n_changed(&self) -> usize {
        match self.place {
            Place::Function | Place::Exit | Place::End => BRANCH_BYTES,
            Place::Entry | Place::TailCall => SLED_BYTES,
            Place::Condition => CONDITION_BYTES,
        }
    }

    /// Returns true if the hook sees calls of the function, rather than returns.
    #[must_use]
    pub fn is_beginning(&self) -> bool {
        matches!(self.place, Place::Function | Place::Entry)
    }

    /// Returns the original bytes, as far as the stub replaces them.
    #[must_use]
    pub fn displaced(&self) -> &[u8] {
        &self.displaced[..self.n_displaced.into()]
    }

    /// Returns the bytes of the changed code.
    #[must_use]
    pub fn branched(&self) -> Vec<u8> {
        let n_changed = self.n_changed();
        let distance = self.stub.wrapping_sub(self.function + n_changed as u64) as u32;
        let opcode = match self.place {
            Place::Function | Place::Exit | Place::End => &[JUMP],
            Place::Entry | Place::TailCall => &LONG_CALL[..],
            // It stays.
            Place::Condition => &[],
        };
        let mut bytes = self.displaced().to_vec();
        bytes[..opcode.len()].copy_from_slice(opcode);
        bytes[n_changed - size_of_val(&distance)..n_changed].copy_from_slice(&distance.to_le_bytes());
        bytes
    }

    /// Returns the same branch with this value of `is_wanted`.
    #[must_use]
    pub fn wanted(self, is_wanted: bool) -> Self {
        Self { is_wanted, ..self }
    }

    /// Returns the address at which a thread must go on that stands at `address`, inside the branch. `None` outside of
    /// it; `Some(None)` if no instruction begins at `address`. No thread stands within a sled, or within one jump.
    #[must_use]
    pub fn moved(&self, address: u64) -> Option<Option<u64>> {
        if !matches!(self.place, Place::Function | Place::End) {
            return None;
        }
        let from = address.checked_sub(self.function)?.checked_sub(1)?;
        let copy = *self.copies.get(usize::try_from(from).ok()?)?;
        Some((copy != 0).then(|| self.stub + u64::from(copy)))
    }

    /// Returns the bytes of the table's entry.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.function.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.stub.to_le_bytes());
        bytes[16..16 + MOST_DISPLACED_BYTES].copy_from_slice(&self.displaced);
        bytes[56..60].copy_from_slice(&self.copies);
        bytes[60] = self.n_displaced;
        bytes[61] = u8::from(self.is_wanted);
        bytes[62] = self.place as u8;
        bytes
    }

    /// Decodes an entry of an untrusted table; `None` for anything that is no branch.
    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
        let places = [Place::Function, Place::Entry, Place::Exit, Place::TailCall, Place::End, Place::Condition];
        let branch = Self {
            function: word(0)?,
            stub: word(8)?,
            place: *places.get(usize::from(bytes[62]))?,
            displaced: *bytes[16..].first_chunk()?,
            n_displaced: bytes[60],
            copies: *bytes[56..].first_chunk()?,
            is_wanted: bytes[61] != 0,
        };
        let n_displaced = usize::from(branch.n_displaced);
        let end = branch.function.checked_add(MOST_DISPLACED_BYTES as u64);
        let n_changed = branch.n_changed();
        let distance = branch.stub.wrapping_sub(branch.function.wrapping_add(n_changed as u64)).cast_signed();
        let is_right = (n_changed..=MOST_DISPLACED_BYTES).contains(&n_displaced)
            && end.is_some()
            && i32::try_from(distance).is_ok()
            && branch.stub.checked_add(u64::from(u8::MAX)).is_some();
        is_right.then_some(branch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// push rbp; mov rbp, rsp; push rbx
    const CODE: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x53];

    fn branch() -> Branch {
        Branch::new(0x40_1000, 0x3f_0000, &CODE, [(0, 18), (1, 19), (4, 22), (5, 23)]).unwrap()
    }

    #[test]
    fn bytes_with_and_without() {
        assert_eq!(branch().displaced(), CODE);
        // 0x3f_0000 - 0x40_1005
        assert_eq!(branch().branched(), [0xe9, 0xfb, 0xef, 0xfe, 0xff]);
        let longer = Branch::new(0x1000, 0x2000, &[0x90; 8], []).unwrap();
        assert_eq!(longer.branched(), [0xe9, 0xfb, 0x0f, 0, 0, 0x90, 0x90, 0x90]);
        assert_eq!(Branch::new(0x1000, 0x2000, &[0x90; 4], []), None);
        assert_eq!(Branch::new(0x1000, 0x2000, &[0x90; MOST_DISPLACED_BYTES + 1], []), None);
        assert_eq!(Branch::new(0x1000, 0x2000, &CODE, [(1, 300)]), None);
    }

    #[test]
    fn threads_are_moved_from_instruction_to_instruction() {
        let moved = |address| branch().moved(address);
        assert_eq!([moved(0x40_1001), moved(0x40_1004)], [Some(Some(0x3f_0013)), Some(Some(0x3f_0016))]);
        // Within an instruction.
        assert_eq!([moved(0x40_1002), moved(0x40_1003)], [Some(None), Some(None)]);
        // The branch itself, what is behind it, and before.
        assert_eq!([moved(0x40_1000), moved(0x40_1005), moved(0x40_0fff), moved(0)], [None; 4]);
    }

    #[test]
    fn the_first_of_two_instructions_that_stand_for_one_counts() {
        // A call became a push and a jump.
        let branch = Branch::new(0x1000, 0x2000, &[0x50, 0xe8, 0, 0, 0, 0], [(0, 18), (1, 19), (1, 25)]).unwrap();
        assert_eq!(branch.moved(0x1001), Some(Some(0x2013)));
    }

    /// The bytes of a sled at a function's beginning: a jump over a NOP.
    const SLED: [u8; SLED_BYTES] = [0xeb, 0x09, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 2, 0, 0];

    #[test]
    fn sleds_become_calls_and_jumps() {
        let sled = |place| Branch::of_sled(0x40_1000, 0x40_2000, place, &SLED).unwrap();
        for place in [Place::Entry, Place::TailCall] {
            let call = [&LONG_CALL[..], &[0xf5, 0x0f, 0, 0]].concat();
            assert_eq!((sled(place).branched(), sled(place).n_changed()), (call, SLED_BYTES));
        }
        assert_eq!(sled(Place::Exit).branched(), [&[0xe9, 0xfb, 0x0f, 0, 0], &SLED[5..]].concat());
        assert_eq!(sled(Place::Entry).moved(0x40_1001), None);
        assert!(sled(Place::Entry).is_beginning() && !sled(Place::Exit).is_beginning());
    }

    /// `pop rbx; pop r12; ret` with a NOP behind; `jne` to another function.
    fn ends() -> [Branch; 2] {
        let end = Branch::new(0x40_1000, 0x40_2000, &[0x5b, 0x41, 0x5c, 0xc3, 0x90], [(0, 0), (1, 1), (3, 3)]);
        let condition = Branch::new(0x40_1000, 0x40_2000, &[0x0f, 0x85, 0x10, 0, 0, 0], []);
        [(end, Place::End), (condition, Place::Condition)].map(|(branch, place)| branch.unwrap().at(place).unwrap())
    }

    #[test]
    fn ends_become_jumps() {
        let [end, condition] = ends();
        assert_eq!(end.branched(), [0xe9, 0xfb, 0x0f, 0, 0]);
        assert_eq!(end.moved(0x40_1001), Some(Some(0x40_2001)));
        assert_eq!([end.moved(0x40_1002), end.moved(0x40_1003)], [Some(None), Some(Some(0x40_2003))]);
        assert_eq!(condition.branched(), [0x0f, 0x85, 0xfa, 0x0f, 0, 0]);
        assert_eq!(condition.moved(0x40_1001), None);
        assert!(!end.is_beginning() && !condition.is_beginning());
        assert_eq!(end.at(Place::Condition), None);
    }

    #[test]
    fn decode_is_the_inverse_of_encode() {
        for is_wanted in [false, true] {
            let sled = |place| Branch::of_sled(0x40_1000, 0x40_2000, place, &SLED).unwrap();
            let [end, condition] = ends();
            for branch in [branch(), sled(Place::Entry), sled(Place::Exit), sled(Place::TailCall), end, condition] {
                let branch = branch.wanted(is_wanted);
                assert_eq!(Branch::decode(&branch.encode()), Some(branch));
            }
        }
    }

    #[test]
    fn what_is_no_branch() {
        let with = |change: fn(&mut [u8; ENTRY_BYTES])| {
            let mut bytes = branch().encode();
            change(&mut bytes);
            Branch::decode(&bytes)
        };
        assert_eq!(with(|bytes| bytes[60] = 4), None);
        // Unknown, and a sled of the bytes of a branch.
        assert_eq!([with(|bytes| bytes[62] = 6), with(|bytes| bytes[62] = 1)], [None; 2]);
        assert_eq!(with(|bytes| bytes[60] = MOST_DISPLACED_BYTES as u8 + 1), None);
        assert_eq!(with(|bytes| bytes[..8].fill(0xff)), None);
        // Out of reach.
        assert_eq!(with(|bytes| bytes[12] = 1), None);
        assert_eq!(Branch::decode(&[0; ENTRY_BYTES]), None);
    }
}
