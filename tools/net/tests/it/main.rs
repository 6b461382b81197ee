//! A receiver among peers that mean harm, and transfers that are cut; traces to and from uftrace.

#![cfg(unix)]

mod attacks;
mod cut;
mod interop;
mod peer;
mod streams;
