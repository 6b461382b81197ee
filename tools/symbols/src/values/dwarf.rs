//! The functions in a file's debug information, and the facts about their values.

use std::collections::{BTreeMap, BTreeSet};

use gimli::{AttributeValue, DebuggingInformationEntry, UnitOffset, constants};
use rftrace_format::values::{self, Form, Place as SpecPlace, ValueSpec};

use super::composed::{Held, Holder, composed};
use super::entry::{MAX_BYTES, Source};
use super::module::{Enumerations, FunctionValues, Layouts, ModuleValues, Shown};
use super::place::{self, FrameBase, Function, Place};
use super::processor::Processor;
use super::results;
use super::returned;
use super::types::{Kind, Type, Types};
use crate::debug::object::File;
use crate::debug::sections::{Debug, Reader};
use crate::debug::units::{Entry, Units};

/// The most arguments that are shown of a function. Numbers from the highest one down stand for unknown ones.
const MAX_ARGUMENTS: usize = 32;
/// The most bytes of room for a branch before what debug information tells of a function.
const MAX_ROOM: u64 = 1 << 10;
/// The highest number of an argument.
const MAX_NUMBER: u8 = 63;

/// The known facts of a unit.
struct UnitFacts {
    is_rust: bool,
    /// True if its compiler is GCC: it keeps to the calling convention, or gives functions other names.
    is_gnu: bool,
    /// The name of the program or crate that it was compiled with.
    program: String,
    /// True if its functions store all their arguments when they begin.
    is_plain: bool,
    /// Its functions that have code.
    functions: Vec<UnitOffset>,
}

/// Reads the functions of a file for a processor.
pub(super) fn functions(
    processor: &'static Processor,
    file: &File<'_>,
    debug: &Debug<'_>,
) -> Result<ModuleValues, gimli::Error> {
    let units = Units::read(debug)?;
    let file_start = file.start();
    let mut named = Named::default();
    // `None` where functions differ that were made one.
    let mut functions: BTreeMap<u64, Option<FunctionValues>> = BTreeMap::new();
    let all = (0..units.len()).map(|unit| facts(&units, unit)).collect::<Result<Vec<_>, _>>()?;
    let optimised: BTreeSet<&str> =
        all.iter().flatten().filter(|facts| !facts.is_plain).map(|facts| &*facts.program).collect();
    for (unit, facts) in all.iter().enumerate().filter_map(|(unit, facts)| Some((unit, facts.as_ref()?))) {
        let is_plain = !optimised.contains(&*facts.program);
        for &offset in &facts.functions {
            let Some(entry) = units.entry(unit, offset) else { continue };
            let Some(address) = units.address(&entry) else { continue };
            let is_before = |start| {
                let before = address - start;
                let code = file.code(start, before);
                // Code that is not in the file is no room.
                before <= MAX_ROOM && code.len() as u64 == before && (processor.is_room)(code)
            };
            let Some((start, symbol)) = file.symbol(address).filter(|&(start, _)| is_before(start)) else { continue };
            let values = Reading {
                processor,
                file,
                units: &units,
                is_rust: facts.is_rust,
                is_gnu: facts.is_gnu,
                is_plain,
                address,
                symbol,
            }
            .values(&entry, &mut named);
            functions
                .entry(start.wrapping_sub(file_start))
                .and_modify(|known| {
                    let is_same = known
                        .as_ref()
                        .is_some_and(|known| known.arguments == values.arguments && known.result == values.result);
                    if !is_same {
                        *known = None;
                    }
                })
                .or_insert(Some(values));
        }
    }
    let is_known = |values: &FunctionValues| !values.arguments.is_empty() || values.result.is_some();
    let functions = functions.into_iter().filter_map(|(address, values)| Some((address, values.filter(is_known)?)));
    let functions = functions.collect();
    Ok(ModuleValues {
        functions,
        enumerations: named.enumerations.all,
        layouts: named.layouts.all,
        n_missing_units: units.n_missing(),
        ..ModuleValues::default()
    })
}

/// The enumerations and layouts that values name.
#[derive(Default)]
struct Named {
    enumerations: Enumerations,
    layouts: Layouts,
}

/// Looks through a unit; `None` if it is of another language than C, C++ and Rust.
fn facts(units: &Units<'_>, number: usize) -> Result<Option<UnitFacts>, gimli::Error> {
    let (unit, dwarf) = (units.unit(number), units.dwarf(number));
    let mut cursor = unit.entries();
    let Some(root) = cursor.next_dfs()? else { return Ok(None) };
    let Some(AttributeValue::Language(language)) = root.attr_value(constants::DW_AT_language) else { return Ok(None) };
    let is_rust = language == constants::DW_LANG_Rust;
    if !is_rust && !is_c(language) {
        return Ok(None);
    }
    let producer = root.attr_value(constants::DW_AT_producer).and_then(|value| dwarf.attr_string(unit, value).ok());
    let producer = producer.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let is_gnu = producer.contains("GNU");
    let name = root.attr_value(constants::DW_AT_name).and_then(|value| dwarf.attr_string(unit, value).ok());
    let name = name.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    // rustc compiles a crate in several units.
    let program = name.split_once("/@/").map_or(&*name, |(program, _)| program).to_owned();
    let mut facts =
        UnitFacts { is_rust, is_gnu, program, is_plain: !is_gnu || !is_optimised(&producer), functions: Vec::new() };
    // The depth of the function, and of what was inlined into it, that the entry is in.
    let (mut function, mut inlined) = (None, None);
    while let Some(entry) = cursor.next_dfs()? {
        let depth = entry.depth();
        function = function.filter(|&function| function < depth);
        inlined = inlined.filter(|&inlined| inlined < depth);
        match entry.tag() {
            constants::DW_TAG_subprogram => {
                function = None;
                if entry.has_attr(constants::DW_AT_low_pc) || entry.has_attr(constants::DW_AT_ranges) {
                    facts.functions.push(entry.offset());
                    function = Some(depth);
                }
                facts.is_plain &= !is_changed(entry);
            }
            constants::DW_TAG_inlined_subroutine if inlined.is_none() => inlined = Some(depth),
            // Parameters show optimisation where the compiler does not tell: they are in several places then, or nowhere.
            constants::DW_TAG_formal_parameter
                if !is_gnu && function.is_some() && inlined.is_none() && facts.is_plain =>
            {
                // Structures that were passed by their address may be nowhere else, and those without a size nowhere.
                facts.is_plain = match entry.attr_value(constants::DW_AT_location) {
                    Some(AttributeValue::Exprloc(_)) => true,
                    location => is_structure(units, &Entry { unit: number, entry: entry.clone() }, location.is_none()),
                };
            }
            _ => {}
        }
    }
    Ok(Some(facts))
}

/// True if an entry's type is a structure; `without_size`: if its values, of structures and others, take no room.
fn is_structure<'d>(units: &Units<'d>, entry: &Entry<'d>, without_size: bool) -> bool {
    let of_type = units.inherited(entry, constants::DW_AT_type);
    let of_type = of_type.and_then(|holder| units.follow(&holder, constants::DW_AT_type));
    of_type.is_some_and(|of_type| match without_size {
        true => of_type.number(constants::DW_AT_byte_size) == Some(0),
        false => matches!(
            of_type.tag(),
            constants::DW_TAG_structure_type | constants::DW_TAG_union_type | constants::DW_TAG_array_type
        ),
    })
}

fn is_c(language: gimli::DwLang) -> bool {
    matches!(
        language,
        constants::DW_LANG_C89
            | constants::DW_LANG_C
            | constants::DW_LANG_C99
            | constants::DW_LANG_C11
            | constants::DW_LANG_C17
            | constants::DW_LANG_C_plus_plus
            | constants::DW_LANG_C_plus_plus_03
            | constants::DW_LANG_C_plus_plus_11
            | constants::DW_LANG_C_plus_plus_14
            | constants::DW_LANG_C_plus_plus_17
            | constants::DW_LANG_C_plus_plus_20
    )
}

/// True if GCC's options have it optimise.
fn is_optimised(producer: &str) -> bool {
    let mut levels = producer.split_whitespace().filter(|option| option.starts_with("-O"));
    levels.next_back().is_some_and(|level| level != "-O0")
}

/// True if the compiler has given a function another interface than the source has.
fn is_changed(entry: &DebuggingInformationEntry<Reader<'_>>) -> bool {
    let convention = entry.attr_value(constants::DW_AT_calling_convention);
    convention == Some(AttributeValue::CallingConvention(constants::DW_CC_nocall))
}

/// The context in which a function is read.
struct Reading<'r, 'f, 'd> {
    processor: &'static Processor,
    file: &'r File<'f>,
    units: &'r Units<'d>,
    is_rust: bool,
    is_gnu: bool,
    is_plain: bool,
    /// Where its code begins, behind room for a branch.
    address: u64,
    /// The linker's name of it.
    symbol: &'r str,
}

impl<'d> Reading<'_, '_, 'd> {
    fn values(&self, entry: &Entry<'d>, named: &mut Named) -> FunctionValues {
        let (unit, dwarf) = (self.units.unit(entry.unit), self.units.dwarf(entry.unit));
        let frame_base = FrameBase::of(self.processor, unit, entry.attribute(constants::DW_AT_frame_base));
        let code = self.file.code(self.address, MAX_BYTES);
        let stores = self.is_plain.then(|| (self.processor.stores)(code, self.address));
        let function =
            Function { processor: self.processor, address: self.address, frame_base, stores: stores.as_ref() };
        let is_prototyped = self.is_rust || self.units.inherited(entry, constants::DW_AT_prototyped).is_some();

        let mut arguments = Vec::new();
        for parameter in self.parameters(entry).into_iter().take(MAX_ARGUMENTS) {
            let mut types = Types::new(self.units, self.is_rust, &mut named.enumerations);
            let holder = parameter.as_ref().and_then(|it| self.units.inherited(it, constants::DW_AT_type));
            let of_type = holder.as_ref().and_then(|holder| types.of(holder));
            let name = SpecPlace::Argument(MAX_NUMBER - arguments.len() as u8);
            let shown = match (parameter, of_type) {
                // Without a prototype it was passed as a `double`.
                (_, Some(Type { kind: Kind::Float, n_bytes: 4 })) if !is_prototyped && !self.is_cpp(entry) => None,
                (Some(parameter), Some(of_type)) => {
                    let size = (of_type.n_bytes, matches!(of_type.kind, Kind::Bool(_)));
                    let location = parameter.attribute(constants::DW_AT_location);
                    let found = location.and_then(|at| place::place(dwarf, unit, &function, at, size));
                    let shape = holder.as_ref().and_then(|holder| types.shape(holder));
                    found.and_then(|place| match shape {
                        Some(shape) => {
                            let (composite, layout) = composed(
                                self.processor,
                                &shape,
                                holder_of(self.processor, &place, of_type.n_bytes)?,
                                name,
                            )?;
                            let type_name = types.resolved(holder.as_ref()?).map(|it| self.units.name(&it));
                            let number = named.layouts.number(&type_name.unwrap_or_default(), layout);
                            Some(Shown::Fields(composite, number))
                        }
                        None => argument(self.processor, of_type, &place),
                    })
                }
                _ => None,
            };
            arguments.push(shown.unwrap_or(Shown::Plain(ValueSpec::new(name, Form::Unknown, 1), None)));
        }
        limit(&mut arguments);
        if arguments.iter().all(|shown| shown.spec().form == Form::Unknown) {
            arguments.clear();
        }
        let is_changed = is_changed(&entry.entry) || is_clone(self.symbol);
        let result = if is_changed { None } else { self.result(entry, named) };
        FunctionValues { arguments, result }
    }

    fn result(&self, entry: &Entry<'d>, named: &mut Named) -> Option<Shown> {
        let mut types = Types::new(self.units, self.is_rust, &mut named.enumerations);
        let unit = entry.unit;
        let holder = self.units.inherited(entry, constants::DW_AT_type)?;
        let of_type = types.of(&holder)?;
        let returns_address = || match self.processor.returns_address {
            Some(proven) => self.is_gnu || self.returns_address(entry, proven),
            None => false,
        };
        let shape = match types.shape(&holder) {
            Some(shape) => shape,
            None if matches!(of_type.kind, Kind::Owned { .. }) && !returns_address() => return None,
            None => return result(of_type),
        };
        let resolved = types.resolved(&holder)?;
        let holder =
            results::holder(self.processor.structures, &types, (&resolved, unit), of_type.n_bytes, returns_address)?;
        let (composite, layout) = composed(self.processor, &shape, holder, SpecPlace::Result(0))?;
        let number = named.layouts.number(&self.units.name(&resolved), layout);
        let shown = Shown::Fields(composite, number);
        values::fit(&[shown.spec()]).then_some(shown)
    }

    /// True if it is proven of the whole code of a function.
    fn returns_address(&self, entry: &Entry<'d>, proven: fn(&[u8], u64) -> bool) -> bool {
        let n_bytes = match entry.attribute(constants::DW_AT_high_pc) {
            Some(AttributeValue::Addr(end)) => end.saturating_sub(self.address),
            Some(value) => value.udata_value().unwrap_or(0),
            None => 0,
        };
        let code = self.file.code(self.address, n_bytes.min(returned::MAX_BYTES));
        code.len() as u64 == n_bytes && proven(code, self.address)
    }

    /// True if a function always has a prototype.
    fn is_cpp(&self, entry: &Entry<'d>) -> bool {
        // Names of C are not mangled.
        self.units.inherited(entry, constants::DW_AT_linkage_name).is_some()
    }

    /// The parameters as the source has them. `None` for those that this function does not have any more.
    fn parameters(&self, entry: &Entry<'d>) -> Vec<Option<Entry<'d>>> {
        let own = self.units.children(entry, constants::DW_TAG_formal_parameter);
        let Some(origin) = self.units.follow(entry, constants::DW_AT_abstract_origin) else {
            return own.into_iter().map(Some).collect();
        };
        let origin_of = |parameter: &Entry<'d>| self.units.follow(parameter, constants::DW_AT_abstract_origin);
        let all = self.units.children(&origin, constants::DW_TAG_formal_parameter);
        let find = |wanted: &Entry<'d>| {
            own.iter().find(|own| origin_of(own).is_some_and(|origin| origin.id() == wanted.id())).cloned()
        };
        all.iter().map(find).collect()
    }
}

/// True if GCC gives such a name to a function that it has made of another one.
fn is_clone(symbol: &str) -> bool {
    [".isra.", ".constprop.", ".part.", ".cold"].iter().any(|mark| symbol.contains(mark))
}

/// Of more values than fit behind a call, the last ones are unknown.
fn limit(arguments: &mut [Shown]) {
    for last in (0..arguments.len()).rev() {
        let specs: Vec<ValueSpec> = arguments.iter().map(Shown::spec).collect();
        if values::fit(&specs) {
            return;
        }
        let place = SpecPlace::Argument(MAX_NUMBER - last as u8);
        arguments[last] = Shown::Plain(ValueSpec::new(place, Form::Unknown, 1), None);
    }
}

/// Where the bytes of an argument with fields are.
fn holder_of(processor: &Processor, place: &Place, n_bytes: u64) -> Option<Holder> {
    let number = |source| processor.number(source);
    let held = |offset, n_bytes, source, is_bit| {
        let (place, is_vector) = match source {
            Source::Float(number) => (SpecPlace::FloatArgument(number), true),
            source => (SpecPlace::Argument(number(source)?), false),
        };
        Some(Held { offset, n_bytes, is_bit, place, is_vector })
    };
    Some(match place {
        Place::Indirect(source) => Holder::Pointed(SpecPlace::Argument(number(*source)?)),
        Place::Whole(source @ Source::Stack(_)) => Holder::OnStack(SpecPlace::Argument(number(*source)?)),
        Place::Whole(source) => Holder::Pieces(vec![held(0, n_bytes.min(8), *source, false)?]),
        Place::Pieces(pieces) => {
            let held = pieces.iter().map(|piece| held(piece.offset, piece.n_bytes, piece.source, piece.is_bit));
            Holder::Pieces(held.collect::<Option<_>>()?)
        }
    })
}

/// How an argument is recorded that has no fields.
fn argument(processor: &Processor, of_type: Type, place: &Place) -> Option<Shown> {
    /// Argument numbers up to here are of registers for floating-point numbers, where the form is one.
    const N_VECTORS: u8 = 8;

    let number = |source| processor.number(source);
    let n_bytes = of_type.n_bytes;
    let spec = |source, form, n_bytes| Some(ValueSpec::new(SpecPlace::Argument(number(source)?), form, n_bytes));
    let word = |source, form, n_bytes| Some(Shown::Plain(spec(source, form, n_bytes)?, None));
    let pair = match place {
        Place::Pieces(pieces) => match **pieces {
            [first, second] if first.offset == 0 && (first.n_bytes, second.offset, second.n_bytes) == (8, 8, 8) => {
                Some((first.source, second.source))
            }
            _ => None,
        },
        _ => None,
    };
    match (of_type.kind, place) {
        (Kind::Number(form), Place::Whole(source)) => word(*source, form, n_bytes),
        (Kind::Named(names) | Kind::Bool(names), Place::Whole(source)) => {
            Some(Shown::Plain(spec(*source, Form::Enumeration(Form::NO_NAMES), n_bytes)?, Some(names)))
        }
        (Kind::Bool(names), Place::Pieces(pieces)) => match **pieces {
            [piece] if (piece.offset, piece.n_bytes) == (0, 1) => {
                Some(Shown::Plain(spec(piece.source, Form::Enumeration(Form::NO_NAMES), 1)?, Some(names)))
            }
            _ => None,
        },
        (Kind::Float, Place::Whole(Source::Float(number))) => {
            Some(Shown::Plain(ValueSpec::new(SpecPlace::FloatArgument(*number), Form::Float, n_bytes), None))
        }
        (Kind::Float, Place::Whole(source @ Source::Stack(_))) if number(*source) > Some(N_VECTORS) => {
            word(*source, Form::Float, n_bytes)
        }
        (Kind::Text { is_length_first }, Place::Pieces(_)) => {
            let (first, second) =
                pair.filter(|&(first, second)| number(first).is_some_and(|first| number(second) == Some(first + 1)))?;
            let is_in_one_place = matches!(
                (first, second),
                (Source::Integer(_), Source::Integer(_)) | (Source::Stack(_), Source::Stack(_))
            );
            let (address, form) = if is_length_first { (second, Form::CountedBefore) } else { (first, Form::Counted) };
            word(address, form, 8).filter(|_| is_in_one_place)
        }
        (Kind::Slice, Place::Pieces(_)) => word(pair?.1, Form::Unsigned, 8),
        (Kind::Owned { address, length }, Place::Indirect(source))
        | (Kind::OwnedPointer { address, length }, Place::Whole(source)) => {
            word(*source, Form::owned(address, length)?, 8)
        }
        _ => None,
    }
}

/// How a result is recorded: what the calling conventions of C and of Rust agree about.
fn result(of_type: Type) -> Option<Shown> {
    let spec = |form| ValueSpec::new(SpecPlace::Result(0), form, of_type.n_bytes);
    let word = |form| ValueSpec::new(SpecPlace::Result(0), form, 8);
    let (spec, enumeration) = match of_type.kind {
        Kind::Number(form) => (spec(form), None),
        Kind::Named(names) | Kind::Bool(names) => (spec(Form::Enumeration(Form::NO_NAMES)), Some(names)),
        Kind::Float => (spec(Form::Float), None),
        Kind::Text { is_length_first: false } => (word(Form::Counted), None),
        Kind::Text { is_length_first: true } => (ValueSpec::new(SpecPlace::Result(1), Form::CountedBefore, 8), None),
        Kind::OwnedPointer { address, length } | Kind::Owned { address, length } => {
            (word(Form::owned(address, length)?), None)
        }
        Kind::Slice | Kind::Other => return None,
    };
    Some(Shown::Plain(spec, enumeration))
}
