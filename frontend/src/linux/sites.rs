//! Where a module calls the hooks.
//!
//! Compilers write `call mcount` in three ways: directly; to a stub (PLT) that jumps by way of a slot; by way of a slot
//! (GOT) itself. The slots are known by relocations that name a hook. All this is read from the file: in memory the calls
//! may have been patched.
//!
//! Every byte of code is looked at, not only where instructions begin. What is found is a call for all that matters: one
//! byte says that it is, four more have to be the distance to a hook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};

use super::modules::Module;
use super::sysinfo::page_size;

type Header = FileHeader64<LittleEndian>;
const ENDIAN: LittleEndian = LittleEndian;

/// The names that compilers call.
const HOOKS: [&[u8]; 2] = [b"mcount", b"__fentry__"];

unsafe extern "C" {
    fn mcount();
    fn __fentry__();
}

/// The addresses behind the calls to the hooks in `module`, ascending: what the hooks take for the functions' addresses.
/// `file` is the module's file.
pub(crate) fn find(file: &[u8], module: &Module) -> Vec<u64> {
    let hooks = [mcount as *const () as u64, __fentry__ as *const () as u64];
    // A file that is not intact has no functions that could be chosen.
    let Ok(Some(image)) = Image::parse(file, module) else {
        return Vec::new();
    };
    let direct = hooks.iter().filter_map(|&hook| image.address_of(hook)).collect();
    let mut slots = image.slots(file, hooks).unwrap_or_default();
    keep_bound_to(&mut slots, hooks, module, &image);
    image.calls(&Targets { direct, slots })
}

/// Of the slots that the dynamic linker has filled, those with a hook: another library's `mcount` may have come first. One
/// that leads into its own module will be filled at the first call.
fn keep_bound_to(slots: &mut BTreeSet<u64>, hooks: [u64; 2], module: &Module, image: &Image<'_>) {
    // Not by a pointer: the module may go away at this moment.
    let Ok(memory) = File::open("/proc/self/mem") else {
        return;
    };
    slots.retain(|&slot| {
        let mut value = [0; 8];
        if memory.read_exact_at(&mut value, slot - image.base + module.start).is_err() {
            return true;
        }
        let value = u64::from_le_bytes(value);
        hooks.contains(&value) || (module.start..module.end).contains(&value)
    });
}

/// The code of a file. Addresses are the file's own.
struct Image<'f> {
    header: &'f Header,
    /// The address that is mapped at the module's start.
    base: u64,
    /// Where the module was mapped.
    range: std::ops::Range<u64>,
    /// Executable segments: address and bytes.
    code: Vec<(u64, &'f [u8])>,
}

/// What a call may lead to.
struct Targets {
    /// The hooks, if they are in this module.
    direct: BTreeSet<u64>,
    /// Words that hold a hook's address.
    slots: BTreeSet<u64>,
}

impl<'f> Image<'f> {
    fn parse(file: &'f [u8], module: &Module) -> Result<Option<Self>, object::Error> {
        let header = Header::parse(file)?;
        let mut lowest = u64::MAX;
        let mut code = Vec::new();
        for segment in header.program_headers(ENDIAN, file)? {
            if segment.p_type(ENDIAN) != elf::PT_LOAD {
                continue;
            }
            let address = segment.p_vaddr(ENDIAN);
            lowest = lowest.min(address);
            if segment.p_flags(ENDIAN).contains(elf::PF_X)
                && let Ok(bytes) = segment.data(ENDIAN, file)
            {
                code.push((address, bytes));
            }
        }
        code.sort_unstable_by_key(|&(address, _)| address);
        let base = lowest - lowest % page_size();
        Ok((!code.is_empty()).then_some(Self { header, base, range: module.start..module.end, code }))
    }

    /// What the file calls the address of something in the running module.
    fn address_of(&self, running: u64) -> Option<u64> {
        self.range.contains(&running).then(|| running - self.range.start + self.base)
    }

    /// The words that the dynamic linker fills with the address of a hook.
    fn slots(&self, file: &[u8], hooks: [u64; 2]) -> Result<BTreeSet<u64>, object::Error> {
        let sections = self.header.sections(ENDIAN, file)?;
        let own: BTreeSet<u64> = hooks.iter().filter_map(|&hook| self.address_of(hook)).collect();
        let mut found = BTreeSet::new();
        for section in sections.iter() {
            let Some((relocations, symbols)) = section.rela(ENDIAN, file)? else {
                continue;
            };
            let symbols = sections.symbol_table_by_index(ENDIAN, file, symbols).ok();
            for relocation in relocations {
                let kind = relocation.r_type(ENDIAN, false);
                let is_hook = if kind == elf::R_X86_64_GLOB_DAT || kind == elf::R_X86_64_JUMP_SLOT {
                    symbols.as_ref().is_some_and(|symbols| {
                        let symbol = relocation.symbol(ENDIAN, false).and_then(|idx| symbols.symbol(idx).ok());
                        let name = symbol.and_then(|symbol| symbol.name(ENDIAN, symbols.strings()).ok());
                        name.is_some_and(|name| HOOKS.contains(&name))
                    })
                } else {
                    kind == elf::R_X86_64_RELATIVE && own.contains(&relocation.r_addend(ENDIAN).cast_unsigned())
                };
                if is_hook {
                    found.insert(relocation.r_offset(ENDIAN));
                }
            }
        }
        Ok(found)
    }

    /// The run-time addresses behind the calls.
    fn calls(&self, targets: &Targets) -> Vec<u64> {
        let mut found = Vec::new();
        if targets.direct.is_empty() && targets.slots.is_empty() {
            return found;
        }
        // Stubs, as they turn up.
        let mut known = BTreeMap::new();
        for &(start, code) in &self.code {
            for (place, window) in code.windows(6).enumerate() {
                let (behind, is_call) = match window[0] {
                    // call rel32
                    0xe8 => {
                        let behind = (start + place as u64).wrapping_add(5);
                        let target = behind.wrapping_add(distance(&window[1..]));
                        let is_hook = targets.direct.contains(&target)
                            || !targets.slots.is_empty()
                                && self.code_at(target).is_some_and(|stub| {
                                    *known.entry(target).or_insert_with(|| is_stub(stub, target, &targets.slots))
                                });
                        (behind, is_hook)
                    }
                    // call [rip + rel32]
                    0xff if window[1] == 0x15 => {
                        let behind = (start + place as u64).wrapping_add(6);
                        (behind, targets.slots.contains(&behind.wrapping_add(distance(&window[2..]))))
                    }
                    _ => continue,
                };
                if is_call {
                    found.push(behind - self.base + self.range.start);
                }
            }
        }
        found
    }

    fn code_at(&self, address: u64) -> Option<&'f [u8]> {
        self.code.iter().find_map(|&(start, code)| code.get(usize::try_from(address.checked_sub(start)?).ok()?..))
    }
}

/// Whether the code at `address` does nothing but jump by way of one of `slots`.
fn is_stub(code: &[u8], address: u64, slots: &BTreeSet<u64>) -> bool {
    // endbr64; bnd
    let after_mark = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let jump = after_mark.strip_prefix(&[0xf2]).unwrap_or(after_mark);
    // jmp [rip + rel32]
    let Some(rest @ [_, _, _, _, ..]) = jump.strip_prefix(&[0xff, 0x25]) else {
        return false;
    };
    let behind = address.wrapping_add((code.len() - rest.len()) as u64 + 4);
    slots.contains(&behind.wrapping_add(distance(rest)))
}

/// The signed 32-bit number that `bytes` begin with.
fn distance(bytes: &[u8]) -> u64 {
    let Some(&bytes) = bytes.first_chunk() else { return 0 };
    i64::from(i32::from_le_bytes(bytes)).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::linux::modules::parse_maps;
    use crate::linux::symbols::read_symbols;
    use crate::linux::symbols::testutil::Scratch;

    /// What stands behind a call of a hook is a symbol that begins with `behind`.
    const SOURCE: &str = r"
    .text
    .globl first, second, third, fourth
    .macro function name
    .type \name, @function
\name:
    .endm
    function first
    push %rbp
    mov %rsp, %rbp
    call mcount@PLT
    function behind_first
    pop %rbp
    ret
    function second
    call *__fentry__@GOTPCREL(%rip)
    function behind_second
    ret
    function third
    push %rbp
    mov %rsp, %rbp
    call *mcount@GOTPCREL(%rip)
    function behind_third
    call __fentry__@PLT
    function behind_third_again
    pop %rbp
    ret
    function fourth                 # these are others
    call mcount_of_another@PLT
    call *fentry@GOTPCREL(%rip)
    call first@PLT
    ret
";

    #[test]
    fn calls_by_way_of_tables_are_found() {
        let scratch = Scratch::new("sites");
        for arguments in
            [&["-Wl,-z,lazy"][..], &["-Wl,-z,now"], &["-Wl,-z,ibtplt"], &["-Wl,-z,lazy", "-Wl,--hash-style=gnu", "-s"]]
        {
            let arguments = [&["-shared", "-nostdlib"], arguments].concat();
            let Some(library) = scratch.compile("a.s", SOURCE, "lib.so", &arguments) else {
                return;
            };
            // At this address there is nothing that the slots could be compared with.
            let module = parse_maps(b"1000000-1010000 r-xp 00000000 00:00 7 /lib.so", 4096).remove(0);
            let found = find(&fs::read(&library).unwrap(), &module);
            assert_eq!(found.len(), 4, "{arguments:?}: {found:x?}");
            let table = read_symbols(&library).unwrap();
            if !arguments.contains(&"-s") {
                let at = |child_ip| table.lookup(child_ip - module.start).map(|symbol| table.name(symbol));
                let names: Vec<_> = found.iter().map(|&child_ip| at(child_ip).unwrap_or_default()).collect();
                assert_eq!(names, ["behind_first", "behind_second", "behind_third", "behind_third_again"]);
            }
        }
    }

    #[test]
    fn other_files_have_none() {
        let module = parse_maps(b"1000000-1010000 r-xp 00000000 00:00 7 /lib.so", 4096).remove(0);
        assert_eq!(find(b"", &module), <[u64; 0]>::default());
        assert_eq!(find(b"\x7fELF", &module), <[u64; 0]>::default());
        // A library that calls no hook.
        let c_library = std::path::Path::new("/lib/x86_64-linux-gnu/libc.so.6");
        if let Ok(file) = fs::read(c_library) {
            assert_eq!(find(&file, &module), <[u64; 0]>::default());
        }
    }
}
