//! A receiver among peers that mean harm, and transfers that are cut; traces to and from uftrace.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "tests name their own files")]

mod attacks;
mod cut;
mod interop;
mod peer;
mod streams;
