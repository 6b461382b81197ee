//! Hashes of stacks: made frame by frame, and what came long before can be taken out.

use rftrace_format::resources::MAX_FRAMES;

/// A polynomial of what tells frames from others, the latest one as its last coefficient.
#[derive(Clone, Copy)]
pub(super) struct Hash(u64);

const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hash {
    pub(super) const NONE: Self = Self(0);

    /// That with a frame more.
    #[inline(always)]
    pub(super) fn with(self, address: u64) -> Self {
        Self(self.0.wrapping_mul(BASE).wrapping_add(mixed(address)))
    }

    /// That without the frames outside of the innermost [`MAX_FRAMES`], whose hash is this.
    #[inline(always)]
    pub(super) fn without(self, outside: Self) -> Self {
        const POWER: u64 = BASE.wrapping_pow(MAX_FRAMES as u32);
        Self(self.0.wrapping_sub(outside.0.wrapping_mul(POWER)))
    }

    /// The hash of so many frames: an odd number.
    #[inline(always)]
    pub(super) fn of(self, n_frames: usize) -> u64 {
        let hash = (self.0 ^ self.0 >> 32).wrapping_add(n_frames as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (hash ^ hash >> 32) | 1
    }
}

#[inline(always)]
fn mixed(address: u64) -> u64 {
    let product = address.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    product ^ product >> 32
}
