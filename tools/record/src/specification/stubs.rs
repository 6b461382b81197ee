//! A library whose functions lead to the library for resources. `LD_PRELOAD` puts it before all others, so calls of
//! these functions between modules reach it, also calls from later modules and through pointers.
//!
//! ```text
//! read     header, loaded segments; symbols, their names, hash table, relocations; names of functions
//! execute  for each function   lea r11, [its data]; jmp [rftrace_resources_specified]
//! write    rftrace_resources_specified, which the dynamic linker writes; for each function the original (0), its name, its number;
//!          data that the dynamic linker reads
//! ```
//!
//! It is an ELF file as defined by the System V ABI and its supplement for x86-64.

use object::elf;
use rftrace_format::recording::SPECIFIED;

const PAGE: usize = 4096;
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SYMBOL_BYTES: usize = 24;
const RELOCATION_BYTES: usize = 24;
/// Of a function: the original, the name, the number.
const KNOWN_BYTES: usize = 24;
const STUB_BYTES: usize = 16;

/// The target of all functions.
const TARGET: &str = "rftrace_resources_specified";
/// Permissions of a segment.
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// Bytes with places.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn align(&mut self, to: usize) -> usize {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
        self.0.len()
    }

    fn words(&mut self, words: &[u64]) {
        self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn halves(&mut self, halves: &[u32]) {
        self.0.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    }
}

/// The library with functions of these names, each with its number.
pub(super) fn library(functions: &[(&str, usize)]) -> Vec<u8> {
    const N_SEGMENTS: usize = 5;

    let names: Vec<&str> = functions.iter().map(|&(name, _)| name).collect();
    let n_symbols = names.len() + 2;
    let mut strings = vec![0];
    let mut string = |text: &str| {
        let at = strings.len();
        strings.extend(text.as_bytes());
        strings.push(0);
        at
    };
    let [target, soname] = [TARGET, SPECIFIED].map(&mut string);
    let named: Vec<usize> = names.iter().map(|name| string(name)).collect();
    // The layout; addresses are places in the file.
    let symbols_at = HEADER_BYTES + N_SEGMENTS * SEGMENT_BYTES;
    let strings_at = symbols_at + n_symbols * SYMBOL_BYTES;
    let hash_at = (strings_at + strings.len()).next_multiple_of(8);
    let n_buckets = names.len().max(1).next_power_of_two();
    let relocations_at = (hash_at + 4 * (2 + n_buckets + n_symbols)).next_multiple_of(8);
    let n_relocations = names.len() + 1;
    let read_end = relocations_at + n_relocations * RELOCATION_BYTES;
    let code_at = read_end.next_multiple_of(PAGE);
    let code_end = code_at + names.len() * STUB_BYTES;
    let data_at = code_end.next_multiple_of(PAGE);
    let known_at = data_at + 8;
    let dynamic_at = known_at + names.len() * KNOWN_BYTES;
    let dynamic: [(i64, usize); 11] = [
        (elf::DT_SONAME.0, soname),
        (elf::DT_HASH.0, hash_at),
        (elf::DT_SYMTAB.0, symbols_at),
        (elf::DT_SYMENT.0, SYMBOL_BYTES),
        (elf::DT_STRTAB.0, strings_at),
        (elf::DT_STRSZ.0, strings.len()),
        (elf::DT_RELA.0, relocations_at),
        (elf::DT_RELASZ.0, n_relocations * RELOCATION_BYTES),
        (elf::DT_RELAENT.0, RELOCATION_BYTES),
        (elf::DT_FLAGS_1.0, elf::DF_1_NOW.0 as usize),
        (elf::DT_NULL.0, 0),
    ];
    let data_end = dynamic_at + dynamic.len() * 16;

    let mut out = Out::default();
    out.0.extend([0x7f, b'E', b'L', b'F', elf::ELFCLASS64.0, elf::ELFDATA2LSB.0, 1, 0]);
    out.words(&[0]);
    out.halves(&[u32::from(elf::ET_DYN.0) | u32::from(elf::EM_X86_64.0) << 16, 1]);
    out.words(&[0, HEADER_BYTES as u64, 0]);
    out.halves(&[0, HEADER_BYTES as u32 | (SEGMENT_BYTES as u32) << 16, N_SEGMENTS as u32 | 64 << 16, 0]);
    let mut segment = |kind: u32, flags: u32, start: usize, end: usize, align: usize| {
        out.halves(&[kind, flags]);
        let (start, bytes) = (start as u64, (end - start) as u64);
        out.words(&[start, start, start, bytes, bytes, align as u64]);
    };
    segment(elf::PT_LOAD.0, PF_R, 0, read_end, PAGE);
    segment(elf::PT_LOAD.0, PF_R | PF_X, code_at, code_end, PAGE);
    segment(elf::PT_LOAD.0, PF_R | PF_W, data_at, data_end, PAGE);
    segment(elf::PT_DYNAMIC.0, PF_R | PF_W, dynamic_at, data_end, 8);
    segment(elf::PT_GNU_STACK.0, PF_R | PF_W, 0, 0, 16);
    let mut symbol = |name: usize, section: u16, value: usize, bytes: usize| {
        let info = u32::from(elf::STB_GLOBAL.0 << 4 | elf::STT_FUNC.0);
        out.halves(&[name as u32, if name == 0 { 0 } else { info } | u32::from(section) << 16]);
        out.words(&[value as u64, bytes as u64]);
    };
    symbol(0, 0, 0, 0);
    symbol(target, 0, 0, 0);
    for (number, &name) in named.iter().enumerate() {
        // There are no sections: any number but 0 marks a definition in this file.
        symbol(name, 1, code_at + number * STUB_BYTES, STUB_BYTES);
    }
    out.0.extend(&strings);
    out.align(8);
    // Chains of symbols with the same hash, the first of each in its bucket.
    let (mut buckets, mut chains) = (vec![0u32; n_buckets], vec![0u32; n_symbols]);
    for (number, name) in names.iter().enumerate() {
        let bucket = &mut buckets[elf::hash(name.as_bytes()) as usize % n_buckets];
        chains[number + 2] = std::mem::replace(bucket, number as u32 + 2);
    }
    out.halves(&[n_buckets as u32, n_symbols as u32]);
    out.halves(&buckets);
    out.halves(&chains);
    out.align(8);
    out.words(&[data_at as u64, 1 << 32 | u64::from(elf::R_X86_64_GLOB_DAT.0), 0]);
    for (number, &name) in named.iter().enumerate() {
        let place = known_at + number * KNOWN_BYTES + 8;
        out.words(&[place as u64, u64::from(elf::R_X86_64_RELATIVE.0), (strings_at + name) as u64]);
    }
    out.align(PAGE);
    for number in 0..names.len() {
        let at = code_at + number * STUB_BYTES;
        let distance = |end: usize, to: usize| ((to - end) as i32).to_le_bytes();
        // lea r11, [rip + …]; jmp [rip + …]
        out.0.extend([0x4c, 0x8d, 0x1d]);
        out.0.extend(distance(at + 7, known_at + number * KNOWN_BYTES));
        out.0.extend([0xff, 0x25]);
        out.0.extend(distance(at + 13, data_at));
        out.0.extend([0xcc; 3]);
    }
    out.align(PAGE);
    out.words(&[0]);
    for &(_, number) in functions {
        out.words(&[0, 0, number as u64]);
    }
    for (tag, value) in dynamic {
        out.words(&[tag.cast_unsigned(), value as u64]);
    }
    out.0
}

#[cfg(test)]
mod tests {
    use object::Endianness;
    use object::read::elf::{FileHeader, ProgramHeader};

    use super::*;

    #[test]
    fn the_dynamic_linker_finds_its_functions() {
        let names = ["pool_get", "pool_put", "_ZN4pool3getEm"];
        let numbered: Vec<(&str, usize)> = names.iter().enumerate().map(|(place, &name)| (name, 10 + place)).collect();
        let bytes = library(&numbered);
        let header = elf::FileHeader64::<Endianness>::parse(&*bytes).unwrap();
        let endian = header.endian().unwrap();
        let segments = header.program_headers(endian, &*bytes).unwrap();
        let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, &*bytes).unwrap()).unwrap();
        let value = |tag: elf::DynamicTag| {
            let entry = dynamic.iter().find(|entry| entry.d_tag.get(endian) == tag).unwrap();
            entry.d_val.get(endian) as usize
        };
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let text = |at: usize| bytes[at..].split(|&byte| byte == 0).next().unwrap();
        let (hash, symbols, strings) = (value(elf::DT_HASH), value(elf::DT_SYMTAB), value(elf::DT_STRTAB));
        let n_buckets = word(hash);
        for (number, name) in names.iter().enumerate() {
            let mut symbol = word(hash + 8 + 4 * (elf::hash(name.as_bytes()) as usize % n_buckets));
            while text(strings + word(symbols + symbol * SYMBOL_BYTES)) != name.as_bytes() {
                symbol = word(hash + 8 + 4 * (n_buckets + symbol));
                assert_ne!(symbol, 0, "{name}");
            }
            // lea r11, [its data]: the number is the third word there.
            let stub = word(symbols + symbol * SYMBOL_BYTES + 8);
            assert_eq!(bytes[stub..stub + 3], [0x4c, 0x8d, 0x1d]);
            assert_eq!(word(stub + 7 + word(stub + 3) + 16), 10 + number, "{name}");
        }
        assert_eq!(text(strings + value(elf::DT_SONAME)), SPECIFIED.as_bytes());
    }
}
