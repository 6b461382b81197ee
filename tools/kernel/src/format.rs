//! Formats of events: `events/<group>/<event>/format` of tracefs.
//!
//! ```text
//! name: sys_exit
//! ID: 442
//! format:
//!         field:unsigned short common_type;       offset:0;       size:2; signed:0;
//!         field:long id;  offset:8;       size:8; signed:1;
//!
//! print fmt: "NR %ld = %ld", REC->id, REC->ret
//! ```

/// The most fields of an event that are kept in mind.
const MAX_FIELDS: usize = 256;

/// The place of a value in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The offset in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
    /// True if the value is signed.
    pub is_signed: bool,
}

impl Field {
    /// Returns the value in an event, with its sign extended; `None` if the event is too short, or the value is no
    /// number.
    pub fn value(self, event: &[u8]) -> Option<u64> {
        let bytes = event.get(self.offset..)?.get(..self.size)?;
        let n_bytes = bytes.len();
        if !matches!(n_bytes, 1 | 2 | 4 | 8) {
            return None;
        }
        let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        let unused = u64::BITS - 8 * n_bytes as u32;
        let extended = (value << unused).cast_signed() >> unused;
        Some(if self.is_signed { extended.cast_unsigned() } else { value })
    }
}

/// The kernel's description of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Format {
    /// The number of the event: its `common_type`.
    pub id: u16,
    /// The event's name.
    pub name: String,
    fields: Vec<(String, Field)>,
}

impl Format {
    /// Parses a format; `None` if it has no number. The text `events/header_page` has neither name nor number: see
    /// [`fields`].
    pub fn parse(text: &str) -> Option<Self> {
        let value = |key| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        Some(Self { id: value("ID:")?.parse().ok()?, name: value("name:")?.to_owned(), fields: fields(text) })
    }

    /// Returns the field with this name.
    pub fn field(&self, name: &str) -> Option<Field> {
        field(&self.fields, name)
    }
}

/// Parses the fields in a text, with their names.
pub fn fields(text: &str) -> Vec<(String, Field)> {
    text.lines().filter_map(parse_field).take(MAX_FIELDS).collect()
}

/// Returns the field with this name.
pub fn field(fields: &[(String, Field)], name: &str) -> Option<Field> {
    fields.iter().find(|(known, _)| known == name).map(|&(_, field)| field)
}

fn parse_field(line: &str) -> Option<(String, Field)> {
    let (declaration, rest) = line.trim_start().strip_prefix("field:")?.split_once(';')?;
    let name = declaration.split_ascii_whitespace().last()?;
    let name = name.split('[').next()?.trim_start_matches('*');
    let value = |key| {
        let part = rest.split(';').map(str::trim).find_map(|part| part.strip_prefix(key));
        part.and_then(|value| value.trim().parse::<usize>().ok())
    };
    let field = Field { offset: value("offset:")?, size: value("size:")?, is_signed: value("signed:") == Some(1) };
    Some((name.to_owned(), field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_an_event() {
        let text = "name: sys_exit\nID: 442\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
                    \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:const char *at;\toffset:24;\tsize:8;\tsigned:0;\n\n\
                    print fmt: \"%s\", REC->comm\n";
        let format = Format::parse(text).expect("a format");
        assert_eq!((format.id, format.name.as_str()), (442, "sys_exit"));
        assert_eq!(format.field("common_pid"), Some(Field { offset: 4, size: 4, is_signed: true }));
        assert_eq!(format.field("comm"), Some(Field { offset: 8, size: 16, is_signed: false }));
        assert_eq!(format.field("at"), Some(Field { offset: 24, size: 8, is_signed: false }));
        assert_eq!(format.field("id"), None);
        for bad in ["", "name: x\n", "name: x\nID: 65536\n", "ID: 3\n"] {
            assert_eq!(Format::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn values() {
        let bytes = [0xfe, 0xff, 0xff, 0xff, 1];
        let value = |offset, size, is_signed| Field { offset, size, is_signed }.value(&bytes);
        assert_eq!(value(0, 4, true), Some(u64::MAX - 1));
        assert_eq!(value(0, 4, false), Some(0xffff_fffe));
        assert_eq!(value(3, 2, false), Some(0x1ff));
        assert_eq!([value(2, 4, true), value(9, 1, true), value(0, 3, true), value(usize::MAX, 1, true)], [None; 4]);
    }
}
