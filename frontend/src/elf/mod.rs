//! ELF files: the functions in one (`table`), their names, those of others that it calls (`imports`), where calls are (`code`), where there
//! is room for some (`patchable`, `sleds`), and which file has the symbols of a stripped one (`separate`); `symfile`
//! writes the functions as a symbol file; `binary` is the API.
//!
//! All is read from the file. Not here: what of it is mapped in this process (`host::linux::modules`), and what lies in
//! memory (`patch`).

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
