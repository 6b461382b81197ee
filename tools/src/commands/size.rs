//! Sizes as they are written: a number and a unit.

/// A size such as `64M`.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1usize << 30,
        unit => return Err(format!("`{unit}` is no unit; K, M and G are")),
    };
    let number: usize = digits.parse().map_err(|_| "a size is a number and a unit, such as 64M".to_owned())?;
    let bytes = number.checked_mul(unit).filter(|&bytes| bytes <= 1 << 44);
    let bytes = bytes.ok_or_else(|| "more than there is memory".to_owned())?;
    if bytes < 64 << 10 { Err("64K is the least".to_owned()) } else { Ok(bytes) }
}
