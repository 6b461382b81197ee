//! Announces the stubs to gdb, by its interface for just-in-time compilers: a list of ELF files in memory, and a
//! function at which gdb stops to read it.
//!
//! Source: "JIT Compilation Interface" in gdb's manual. The two symbols are weak: LLVM in the same program has them too, and
//! then there is one list.

use std::arch::global_asm;
use std::ops::Range;
use std::ptr;
use std::slice;

use libc::{Elf64_Ehdr, Elf64_Shdr, Elf64_Sym};
use object::elf;

/// `struct jit_code_entry`
#[repr(C)]
struct Entry {
    next: *mut Entry,
    previous: *mut Entry,
    file: *const u8,
    file_bytes: u64,
}

/// `struct jit_descriptor`
#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

/// `JIT_REGISTER_FN`
const REGISTER: u32 = 1;

global_asm!(
    ".pushsection .data.__jit_debug_descriptor, \"aw\", @progbits",
    ".p2align 3",
    ".weak __jit_debug_descriptor",
    ".type __jit_debug_descriptor, @object",
    ".size __jit_debug_descriptor, {size}",
    "__jit_debug_descriptor:",
    ".long 1", // version
    ".zero {size} - 4",
    ".popsection",
    ".pushsection .text.__jit_debug_register_code, \"ax\", @progbits",
    ".weak __jit_debug_register_code",
    ".type __jit_debug_register_code, @function",
    "__jit_debug_register_code:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
    size = const size_of::<Descriptor>(),
);

unsafe extern "C" {
    static mut __jit_debug_descriptor: Descriptor;
    fn __jit_debug_register_code();
}

/// Adds permanent stubs and thunks to gdb's list: the thunks come first. `frames` is their `.eh_frame`. Under this
/// crate's lock, or while there is one thread.
pub(super) fn register(stubs: &Range<usize>, thunks: &Range<usize>, frames: &[u8]) {
    let file: &'static [u8] = Vec::leak(file(stubs, thunks, frames));
    // SAFETY: the list has this layout; others add to it as compilers of their own, at times of their own.
    unsafe {
        let list = &raw mut __jit_debug_descriptor;
        let first = (*list).first;
        let entry = Box::leak(Box::new(Entry {
            next: first,
            previous: ptr::null_mut(),
            file: file.as_ptr(),
            file_bytes: file.len() as u64,
        }));
        if !first.is_null() {
            (*first).previous = entry;
        }
        (*list).first = entry;
        (*list).relevant = entry;
        (*list).action = REGISTER;
        __jit_debug_register_code();
    }
}

/// Names of the sections and, behind them, of the symbols.
const STRINGS: &[u8] = b"\0.text\0.eh_frame\0.symtab\0.strtab\0rftrace_stub\0rftrace_thunk\0";

/// Numbers of the referenced sections, and the number of all.
const TEXT: u16 = 1;
const NAMES: u16 = 4;
const N_SECTIONS: u16 = 5;

/// Returns an ELF file with a description of the stubs.
fn file(stubs: &Range<usize>, thunks: &Range<usize>, frames: &[u8]) -> Vec<u8> {
    let function = |name: &str, range: &Range<usize>| Elf64_Sym {
        st_name: name_at(name),
        st_info: (elf::STB_LOCAL.0 << 4) | elf::STT_FUNC.0,
        st_other: 0,
        st_shndx: TEXT,
        st_value: range.start as u64,
        st_size: range.len() as u64,
    };
    let none = Elf64_Sym { st_name: 0, st_info: 0, st_other: 0, st_shndx: 0, st_value: 0, st_size: 0 };
    let symbols = [none, function("rftrace_stub", stubs), function("rftrace_thunk", thunks)];

    let mut contents = Vec::new();
    let mut place = |section: &[u8]| {
        contents.resize((size_of::<Elf64_Ehdr>() + contents.len()).next_multiple_of(8) - size_of::<Elf64_Ehdr>(), 0);
        let start = size_of::<Elf64_Ehdr>() + contents.len();
        contents.extend_from_slice(section);
        (start as u64, section.len() as u64)
    };
    let frames_at = place(frames);
    let symbols_at = place(bytes_of(&symbols));
    let names_at = place(STRINGS);
    let (sections_at, _) = place(&[]);

    let code = thunks.start..stubs.end;
    let section = |name: &str, kind: u32, flags: u64, address: usize, (offset, size): (u64, u64)| Elf64_Shdr {
        sh_name: name_at(name),
        sh_type: kind,
        sh_flags: flags,
        sh_addr: address as u64,
        sh_offset: offset,
        sh_size: size,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 8,
        sh_entsize: 0,
    };
    let flags = (elf::SHF_ALLOC | elf::SHF_EXECINSTR).0;
    let sections: [Elf64_Shdr; N_SECTIONS as usize] = [
        section("", elf::SHT_NULL.0, 0, 0, (0, 0)),
        section(".text", elf::SHT_NOBITS.0, flags, code.start, (0, code.len() as u64)),
        section(".eh_frame", elf::SHT_PROGBITS.0, elf::SHF_ALLOC.0, frames.as_ptr() as usize, frames_at),
        Elf64_Shdr {
            sh_link: u32::from(NAMES),
            sh_info: symbols.len() as u32, // all are local
            sh_entsize: size_of::<Elf64_Sym>() as u64,
            ..section(".symtab", elf::SHT_SYMTAB.0, 0, 0, symbols_at)
        },
        section(".strtab", elf::SHT_STRTAB.0, 0, 0, names_at),
    ];
    let header = Elf64_Ehdr {
        e_ident: [0x7f, b'E', b'L', b'F', libc::ELFCLASS64, libc::ELFDATA2LSB, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        e_type: libc::ET_EXEC,
        e_machine: libc::EM_X86_64,
        e_version: libc::EV_CURRENT,
        e_entry: 0,
        e_phoff: 0,
        e_shoff: sections_at,
        e_flags: 0,
        e_ehsize: size_of::<Elf64_Ehdr>() as u16,
        e_phentsize: 0,
        e_phnum: 0,
        e_shentsize: size_of::<Elf64_Shdr>() as u16,
        e_shnum: N_SECTIONS,
        e_shstrndx: NAMES,
    };
    let mut file = bytes_of(slice::from_ref(&header)).to_vec();
    file.append(&mut contents);
    file.extend_from_slice(bytes_of(&sections));
    file
}

fn name_at(name: &str) -> u32 {
    let place = STRINGS.windows(name.len() + 1).position(|part| part.strip_suffix(b"\0") == Some(name.as_bytes()));
    place.unwrap_or(0) as u32
}

/// A part of an ELF file.
trait Part {}
impl Part for Elf64_Ehdr {}
impl Part for Elf64_Shdr {}
impl Part for Elf64_Sym {}

fn bytes_of<T: Part>(parts: &[T]) -> &[u8] {
    // SAFETY: these structs have no padding.
    unsafe { slice::from_raw_parts(parts.as_ptr().cast(), size_of_val(parts)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        assert_eq!(name_at(""), 0);
        assert_eq!(STRINGS[name_at("rftrace_stub") as usize..].iter().take_while(|&&byte| byte != 0).count(), 12);
    }
}
