//! Numbers in as few bytes as they need: LEB128, seven bits a byte, the lowest first.

/// Appends one.
pub(crate) fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes one from the front; `None` if there is none.
#[inline]
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, mut rest) = bytes.split_first()?;
    let mut value = u64::from(first & 0x7f);
    let (mut byte, mut shift) = (first, 0);
    while byte >= 0x80 {
        shift += 7;
        let (&next, more) = rest.split_first()?;
        (byte, rest) = (next, more);
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
    }
    *bytes = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_as_they_were_written() {
        let values = [0, 1, 127, 128, 300, 1 << 32, u64::MAX];
        let mut bytes = Vec::new();
        values.iter().for_each(|&value| number(&mut bytes, value));
        let mut rest = &bytes[..];
        assert_eq!(values.map(|_| take_number(&mut rest).unwrap()), values);
        assert_eq!(take_number(&mut rest), None);
        assert_eq!(take_number(&mut &[0x80, 0x80][..]), None);
        assert_eq!(take_number(&mut &[0xff; 20][..]), None);
    }
}
