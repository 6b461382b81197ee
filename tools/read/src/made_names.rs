//! Names for functions without names, such as those of stripped programs: `sub_64da0@redis-server`.
//!
//! Not here: the names of symbol files (`symbols`).

/// Modules from here on were moved: their addresses in the file count from their beginning. Those below, programs and
/// kernels with fixed addresses, lie at the addresses of their files.
const FIRST_MOVED: u64 = 1 << 32;

/// The beginning of a made name, as in the recorder.
const MADE: &str = "sub_";

/// Returns the name of the function at an address: its address in the file, and the module, which begins at `start`.
#[must_use]
pub fn made_name(module: &str, start: u64, address: u64) -> String {
    let in_file = if start < FIRST_MOVED { address } else { address.saturating_sub(start) };
    format!("{MADE}{in_file:x}@{module}")
}

/// Returns true for the name of a function without a name, with the module or without.
#[must_use]
pub fn is_nameless(name: &str) -> bool {
    is_made(name.split_once('@').map_or(name, |(made, _)| made))
}

/// True for a name made by the recorder, without the module.
pub(crate) fn is_made(name: &str) -> bool {
    let address = name.strip_prefix(MADE).unwrap_or_default();
    !address.is_empty() && address.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_file() {
        assert_eq!(made_name("a", 0x5555_5555_4000, 0x5555_5555_5139), "sub_1139@a");
        assert_eq!(made_name("a", 0x40_0000, 0x40_1136), "sub_401136@a");
        assert_eq!(["sub_64da0@redis", "sub_64da0", "a@b"].map(is_nameless), [true, true, false]);
        assert_eq!(["sub_64da0", "sub_", "sub_face_detect", "sub_1@a"].map(is_made), [true, false, false, false]);
    }
}
