//! ELF files.
//!
//! - `table`: the functions of a file; `names`: their names; `symfile`: both as a symbol file of a trace.
//! - `imports`: functions of other files; `code`: the places of calls; `patchable`, `sleds`: room for branches.
//! - `separate`: the file with the symbols of a stripped one; `binary`: the API.
//!
//! Not here: modules in this process (`host::linux::modules`), and contents of memory (`patch`).

#![cfg_attr(not(feature = "std"), allow(dead_code, reason = "an import needs a part of it"))]

pub(crate) mod binary;
pub(crate) mod code;
pub(crate) mod file;
pub(crate) mod imports;
pub(crate) mod names;
pub(crate) mod patchable;
pub(crate) mod separate;
pub(crate) mod sleds;
pub(crate) mod symfile;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testutil;
