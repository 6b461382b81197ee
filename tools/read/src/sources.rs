//! `<module>.dbg`: the source lines of a module's functions, and the specs of their values.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use rftrace_format::layout::Layout;
use rftrace_format::symbols::{Head, MAX_INLINED, SourcePart, enumerators};
use rftrace_format::values::{Form, ValueSpec};

use crate::error::Result;
use crate::lines::Lines;
use crate::warning::{Warning, Warnings};

/// The maximum number of places of all modules of a trace.
const MAX_PLACES: usize = 1 << 23;

/// The longest path in bytes; longer ones are cut.
const MAX_PATH_BYTES: usize = 4096;

/// The maximum number of inlined functions in a short text.
const MAX_SHOWN: usize = 4;

/// The source line of a function's beginning. It is displayed as `src/main.rs:12`, followed by `, inlined: parse, next`
/// if inlined functions are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourcePlace<'t> {
    /// The source file's path, as the compiler got it.
    pub path: &'t str,
    /// The line number, from 1.
    pub line: u32,
    /// The functions inlined into it, without calls of their own; direct callees come first. Empty unless the trace
    /// [shows them](crate::Trace::show_inlined).
    pub inlined: &'t [Box<str>],
}

impl fmt::Display for SourcePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path, self.line)?;
        for (idx, name) in self.inlined.iter().take(MAX_SHOWN).enumerate() {
            write!(f, "{}{name}", if idx == 0 { ", inlined: " } else { ", " })?;
        }
        match self.inlined.len() {
            MAX_INLINED.. => f.write_str(" and more"),
            n_inlined if n_inlined > MAX_SHOWN => write!(f, " and {} more", n_inlined - MAX_SHOWN),
            _ => Ok(()),
        }
    }
}

/// The places of a module's functions, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct SourceTable {
    /// The file's module, by its head.
    pub(crate) head: Head,
    places: Vec<Place>,
    paths: Vec<Box<str>>,
    /// The inlined functions of all places, in the order of the file.
    inlined: Vec<Box<str>>,
    /// By address; a function may have several.
    values: Vec<(u64, ValuePart)>,
    enumerations: Enumerations,
    layouts: Layouts,
}

/// The layouts named in specs.
#[derive(Debug, Default)]
struct Layouts {
    /// Each name has a number.
    numbers: HashMap<Box<str>, u16>,
    /// The layouts by number.
    layouts: HashMap<u16, Layout>,
}

impl Layouts {
    /// Returns the number of the layout with this name; beyond the limit a number without a layout.
    fn number(&mut self, name: &str) -> u16 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = u16::try_from(self.numbers.len()).unwrap_or(Form::NO_NAMES);
        if number < Form::NO_NAMES {
            self.numbers.insert(name.into(), number);
        }
        number
    }
}

/// The enumerations named in specs.
#[derive(Debug, Default)]
struct Enumerations {
    /// Each name has a number.
    numbers: HashMap<Box<str>, u16>,
    /// The names by enumeration and value.
    names: HashMap<(u16, i32), Box<str>>,
}

impl Enumerations {
    /// Returns the number of the enumeration with this name. All beyond the limit share the last number, without names.
    fn number(&mut self, name: &str) -> u16 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = u16::try_from(self.numbers.len()).unwrap_or(u16::MAX);
        if number < u16::MAX {
            self.numbers.insert(name.into(), number);
        }
        number
    }

    fn add(&mut self, name: &str, names: &str) {
        let number = self.number(name);
        for (name, value) in enumerators(names) {
            if number < u16::MAX && self.names.len() < MAX_PLACES {
                self.names.entry((number, value)).or_insert_with(|| name.into());
            }
        }
    }
}

/// The values of a function's calls, or of its returns.
#[derive(Debug)]
struct ValuePart {
    is_result: bool,
    specs: Vec<ValueSpec>,
}

impl ValuePart {
    /// Reads the text behind `A:` or `R:`; `None` unless all of it is understood.
    fn parse(text: &str, is_result: bool, enumerations: &mut Enumerations, layouts: &mut Layouts) -> Option<Self> {
        let specs = text.strip_prefix('@')?.split(',').map(|spec| {
            ValueSpec::parse_recorded(spec, |name| enumerations.number(name), |name| layouts.number(name)).ok()
        });
        Some(Self { is_result, specs: specs.collect::<Option<_>>()? })
    }
}

#[derive(Debug)]
struct Place {
    addr: u64,
    line: u32,
    /// An index of the paths.
    path: u32,
    /// Indices of the inlined functions.
    inlined: Range<u32>,
}

impl SourceTable {
    /// Reads a file of source lines. Unknown lines are counted and ignored. Places of other files count for the limit
    /// too. Inlined functions are left out without `has_inlined`.
    pub(crate) fn read(mut lines: Lines, n_others: usize, has_inlined: bool, warnings: &mut Warnings) -> Result<Self> {
        let mut table = Self::default();
        let mut numbers: HashMap<Box<str>, u32> = HashMap::new();
        let mut function = None;
        let mut about = 0;
        while let Some(line) = lines.next()? {
            let part = SourcePart::parse(line);
            let may_be_head = !matches!(part, Some(SourcePart::Layout { .. } | SourcePart::Inlined(_)));
            if may_be_head && table.head.add(line) {
                continue;
            }
            match part {
                Some(SourcePart::Function { addr }) => {
                    function = Some(addr);
                    about = addr;
                }
                Some(part @ (SourcePart::Arguments(specs) | SourcePart::Result(specs))) => {
                    let is_result = matches!(part, SourcePart::Result(_));
                    let values = ValuePart::parse(specs, is_result, &mut table.enumerations, &mut table.layouts);
                    table.values.extend(values.map(|values| (about, values)));
                }
                Some(SourcePart::Place { line, path }) => {
                    let Some(addr) = function.take() else { continue };
                    let path = &path[..path.floor_char_boundary(MAX_PATH_BYTES)];
                    let path = match numbers.get(path) {
                        Some(&number) => number,
                        // As many as places at the most.
                        None => {
                            let number = table.paths.len() as u32;
                            table.paths.push(path.into());
                            numbers.insert(path.into(), number);
                            number
                        }
                    };
                    // As many as places at the most.
                    let n_inlined = table.inlined.len() as u32;
                    table.places.push(Place { addr, line, path, inlined: n_inlined..n_inlined });
                }
                Some(SourcePart::Inlined(name)) => {
                    // They are of no use without the places.
                    let has_room = has_inlined && n_others + table.len() < MAX_PLACES / 2;
                    let known = table.places.last_mut().filter(|place| has_room && place.addr == about);
                    if let Some(place) = known {
                        table.inlined.push(name[..name.floor_char_boundary(MAX_PATH_BYTES)].into());
                        place.inlined.end += 1;
                    }
                }
                Some(SourcePart::Enumeration { name, names }) => table.enumerations.add(name, names),
                Some(SourcePart::Layout { name, text }) => {
                    let layout = Layout::parse(text, &mut |name| table.enumerations.number(name));
                    let number = table.layouts.number(name);
                    if let Some(layout) = layout.filter(|_| number < Form::NO_NAMES) {
                        table.layouts.layouts.entry(number).or_insert(layout);
                    }
                }
                Some(SourcePart::Other) => {}
                None => warnings.add(Warning::UnknownLine, 1),
            }
            if n_others + table.len() > MAX_PLACES {
                let reason = format!("the modules have more than {MAX_PLACES} source lines; remove the file");
                return Err(lines.error(&reason));
            }
        }
        table.places.sort_by_key(|place| place.addr);
        table.values.sort_by_key(|(addr, _)| *addr);
        Ok(table)
    }

    /// Returns the source line of the function at `addr`, relative to the module.
    pub(crate) fn find(&self, addr: u64) -> Option<SourcePlace<'_>> {
        let idx = self.places.binary_search_by_key(&addr, |place| place.addr).ok()?;
        let Place { line, path, ref inlined, .. } = self.places[idx];
        let inlined = &self.inlined[inlined.start as usize..inlined.end as usize];
        Some(SourcePlace { path: &self.paths[path as usize], line, inlined })
    }

    /// Returns the specs of the function at `addr`, for its calls or for its returns.
    pub(crate) fn values(&self, addr: u64, is_result: bool) -> Option<&[ValueSpec]> {
        let first = self.values.partition_point(|(other, _)| *other < addr);
        let own = self.values[first..].iter().take_while(|(other, _)| *other == addr);
        own.map(|(_, values)| values).find(|values| values.is_result == is_result).map(|values| &*values.specs)
    }

    /// The name of a number in the enumeration with a number.
    pub(crate) fn enumerator(&self, enumeration: u16, value: i32) -> Option<&str> {
        self.enumerations.names.get(&(enumeration, value)).map(|name| &**name)
    }

    /// The layout with a number.
    pub(crate) fn layout(&self, number: u16) -> Option<&Layout> {
        self.layouts.layouts.get(&number)
    }

    /// True if the place of any function is known.
    pub(crate) fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns true if any inlined function is known.
    pub(crate) fn has_inlined(&self) -> bool {
        !self.inlined.is_empty()
    }

    /// The number of places, inlined functions and values.
    pub(crate) fn len(&self) -> usize {
        self.places.len() + self.inlined.len() + self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn places_of_functions() {
        let text: &[u8] =
            b"# path name: /bin/a\nF: 20 g\nL: 7 b.c\nA: @arg1%rdi\nR: @retval/q:a\nnonsense\nF: 10 f\nL: 3 a b.c\nL: 4 again.c\n# inlined g<1>\n# inlined h\nF: 30 h\n# inlined i\n";
        let mut warnings = Warnings::default();
        let mut read = |has_inlined| {
            SourceTable::read(Lines::new(Path::new("dbg"), Box::new(text)), 0, has_inlined, &mut warnings).unwrap()
        };
        let (table, with_inlined) = (read(false), read(true));
        assert_eq!(with_inlined.find(0x10).unwrap().to_string(), "a b.c:3, inlined: g<1>, h");
        assert_eq!((with_inlined.find(0x20), with_inlined.len()), (table.find(0x20), 5));
        assert_eq!(table.head.path.as_deref(), Some("/bin/a"));
        assert_eq!(table.find(0x10).unwrap().to_string(), "a b.c:3");
        assert_eq!(table.find(0x20), Some(SourcePlace { path: "b.c", line: 7, inlined: &[] }));
        assert!(table.find(0x30).is_none() && table.find(0x11).is_none());
        assert!(table.values(0x20, true).is_none() && table.values(0x21, false).is_none());
        assert_eq!(table.values(0x20, false).unwrap(), ValueSpec::parse_list("arg1").unwrap());
        assert_eq!((table.len(), warnings.count(Warning::UnknownLine)), (3, 2));
    }
}
