//! The functions of a program without Linux: none is known by its name.

use std::iter;

use super::super::values::KnownValues;
use crate::host::Known;

/// The functions of the running program: none is known.
#[derive(Debug, Default)]
pub(crate) struct Catalogue;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TracedFunction<'c> {
    #[expect(dead_code, reason = "there is none")]
    None(std::convert::Infallible, &'c ()),
}

impl Catalogue {
    pub(crate) fn refresh(&mut self, _known: &Known) {}

    pub(crate) fn functions(&self) -> impl Iterator<Item = TracedFunction<'_>> {
        iter::empty()
    }

    pub(crate) fn all_names(&self) -> impl Iterator<Item = String> {
        iter::empty()
    }

    pub(crate) fn traced_modules(&self) -> impl Iterator<Item = (String, Option<String>)> {
        iter::empty()
    }

    pub(crate) fn module_names(&self) -> impl Iterator<Item = &str> {
        iter::empty()
    }
}

impl<'c> TracedFunction<'c> {
    pub(crate) fn name(&self) -> &'c str {
        ""
    }

    pub(crate) fn name_with_parameters(&self) -> Option<String> {
        None
    }

    pub(crate) fn module(&self) -> &'c str {
        ""
    }

    pub(crate) fn address(&self) -> u64 {
        0
    }

    pub(crate) fn code_bytes(&self) -> Option<u64> {
        None
    }

    pub(crate) fn child_ips(&self) -> &'c [u64] {
        &[]
    }

    pub(crate) fn has_arguments(&self) -> bool {
        false
    }

    pub(crate) fn known_values<'k>(&self, _known: &'k KnownValues) -> Option<(&'k [u16], &'k [u16])> {
        None
    }

    pub(crate) fn is_known(&self, _known: &KnownValues) -> bool {
        false
    }

    pub(crate) fn is_own(&self) -> bool {
        false
    }
}
