//! No values are recorded: for processors and systems without `values.rs`.

use core::iter;

/// Of no function.
#[derive(Clone, Copy)]
pub(crate) enum Site {}

/// None.
pub(crate) fn site(_: u8, _: usize) -> Option<Site> {
    None
}

/// Of no call.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {}

/// None.
pub(crate) struct Values;

impl Wanted {
    pub(crate) fn of_call(_: Option<Site>, _: usize, _: usize, _: usize) -> Option<Self> {
        None
    }

    pub(crate) fn of_return(_: usize, _: usize, _: usize) -> Option<Self> {
        None
    }

    pub(crate) fn trampoline(self) -> Option<usize> {
        match self {}
    }

    pub(crate) fn begun(self, _: u32) {
        match self {}
    }

    pub(crate) fn returned(self, _: u32, _: u64) {
        match self {}
    }
}

/// Nothing is done before a call.
pub(crate) fn before(_: Option<Site>) -> u32 {
    0
}

impl Values {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn n_units(&self) -> usize {
        0
    }

    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        iter::empty()
    }

    pub(crate) fn read_arguments(&mut self, wanted: Wanted) {
        match wanted {}
    }

    pub(crate) fn read_result(&mut self, wanted: Wanted) {
        match wanted {}
    }
}
