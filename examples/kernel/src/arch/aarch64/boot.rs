//! The way from QEMU to [`kernel_main`](crate::kernel_main), and the command line.

use core::arch::global_asm;
use core::ffi::CStr;
use core::slice;

global_asm!(include_str!("boot.s"), options(raw));

/// The argument of [`kernel_main`](crate::kernel_main): the address of the device tree.
pub type Info = &'static Header;

/// The beginning of a device tree (Devicetree Specification 0.4, 5.2). All numbers are big-endian.
#[repr(C)]
pub struct Header {
    magic: u32,
    total_bytes: u32,
    structure: u32,
    strings: u32,
}

const MAGIC: u32 = 0xd00d_feed;
/// Tokens of the structure.
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOTHING: u32 = 4;

/// The kernel's command line: the property `bootargs` of `/chosen`.
///
/// # Panics
///
/// When there is no device tree.
pub fn command_line(info: Info) -> &'static str {
    assert!(
        u32::from_be(info.magic) == MAGIC,
        "no device tree at the beginning of memory: use qemu-system-aarch64 -M virt -kernel"
    );
    let bytes = u32::from_be(info.total_bytes) as usize;
    // SAFETY: by the specification the tree is one piece of so many bytes. All memory is mapped where it lies, and nothing writes there.
    let tree = unsafe { slice::from_raw_parts((&raw const *info).cast::<u8>(), bytes) };
    let line = boot_arguments(tree, u32::from_be(info.structure) as usize, u32::from_be(info.strings) as usize);
    line.to_str().expect("the command line is not UTF-8")
}

fn boot_arguments(tree: &'static [u8], structure: usize, strings: usize) -> &'static CStr {
    let string =
        |place: usize| CStr::from_bytes_until_nul(&tree[place..]).expect("a string of the device tree has an end");
    let mut place = structure;
    let mut is_chosen = false;
    loop {
        let word = |number: usize| {
            let word = tree[place + 4 * number..].first_chunk().expect("the device tree has an end");
            u32::from_be_bytes(*word)
        };
        let bytes = match word(0) {
            BEGIN_NODE => {
                let name = string(place + 4);
                is_chosen = name == c"chosen";
                4 + name.count_bytes() + 1
            }
            PROPERTY if is_chosen && string(strings + word(2) as usize) == c"bootargs" => return string(place + 12),
            PROPERTY => 12 + word(1) as usize,
            END_NODE | NOTHING => 4,
            _ => return c"",
        };
        place += bytes.next_multiple_of(4);
    }
}
