//! The rule for return addresses in the unwind information of trampolines, for all processors.

// The rule for the return address of a trampoline: a DWARF expression to find the entry of a frame in the return stacks
// of all threads. Its stack is noted beside, right end on top: the CFA; the frame; T, the beginning of the trampolines'
// block; the flag of the second pass.
//
// `rule` is the column of the return address, and the number of bytes to follow. `frame` and `block` push the frame and
// T. `list` is the place of the distance to the list of threads, from T on (ULEB128); `mask` the upper byte of the mask
// that makes T of an address in the block. Jumps stay within the part common to all.
macro_rules! walk_return_stacks {
    (rule = $rule:literal, frame = $frame:literal, block = $block:literal, list = $list:literal, mask = $mask:literal) => {
        concat!(
            // DW_CFA_val_expression for the return address, and how many bytes follow.
            ".cfi_escape ",
            $rule,
            "\n",
            // The unwinder pushed the CFA.                                        CFA
            ".cfi_escape ",
            $frame,
            "\n", // CFA frame
            ".cfi_escape ",
            $block,
            "\n",                 // CFA frame T
            ".cfi_escape 0x30\n", // lit0                    CFA frame T pass
            // restart: load the head of the list of threads.
            ".cfi_escape 0x14, 0x12, 0x23, ",
            $list,
            "\n",                             // over, dup, plus the list's place .. T pass T its place
            ".cfi_escape 0x06, 0x22, 0x06\n", // deref, plus, deref      .. T pass block
            // block: all threads seen?
            ".cfi_escape 0x12, 0x28, 0x0e, 0x00\n",       // dup, bra have
            ".cfi_escape 0x13, 0x12, 0x28, 0x05, 0x00\n", // drop, dup, bra fail     .. T pass
            ".cfi_escape 0x13, 0x31, 0x2f, 0xea, 0xff\n", // drop, lit1, skip restart: again, without the filter
            // fail: a return address of 0 ends the backtrace.
            ".cfi_escape 0x30, 0x2f, 0xa0, 0x00\n", // lit0, skip end
            // have: p = *block->psp, one above the thread's innermost entry.
            ".cfi_escape 0x12, 0x23, 0x08, 0x06, 0x06\n", // dup, plus 8, deref, deref  .. pass block p
            ".cfi_escape 0x15, 0x02, 0x28, 0x6b, 0x00\n", // pick 2, bra loop: second pass, linear search
            // First pass: skip threads whose range of frames does not include ours.
            ".cfi_escape 0x14, 0x23, 0x10, 0x06\n", // over, plus 16, deref    .. block p base
            ".cfi_escape 0x23, 0x08, 0x06\n",       // plus 8, deref: frame of the outermost entry
            ".cfi_escape 0x15, 0x05, 0x2d, 0x28, 0x84, 0x00\n", // pick 5, lt, bra next
            ".cfi_escape 0x12, 0x09, 0xe8, 0x22, 0x06\n", // dup, const1s -24, plus, deref: frame of the innermost entry
            ".cfi_escape 0x15, 0x05, 0x2b, 0x28, 0x79, 0x00\n", // pick 5, gt, bra next
            // Binary search for the last entry with a frame not below ours.
            ".cfi_escape 0x14, 0x23, 0x10, 0x06, 0x16\n", // over, plus 16, deref, swap .. block lo hi
            // bs: lo = base, hi = p at first
            ".cfi_escape 0x12, 0x15, 0x02, 0x1c, 0x12\n", // dup, pick 2, minus, dup .. lo hi n n
            ".cfi_escape 0x08, 0x20, 0x2b, 0x28, 0x05, 0x00\n", // const1u 32, gt, bra go       .. lo hi n
            ".cfi_escape 0x13, 0x13, 0x2f, 0x1e, 0x00\n", // drop, drop, skip found  .. lo
            // go: mid = lo + n / 64 * 32
            ".cfi_escape 0x08, 0x40, 0x1b, 0x08, 0x20, 0x1e\n", // const1u 64, div, const1u 32, mul
            ".cfi_escape 0x15, 0x02, 0x22\n",                   // pick 2, plus            .. lo hi mid
            ".cfi_escape 0x12, 0x23, 0x08, 0x06\n",             // dup, plus 8, deref      .. lo hi mid mid.frame
            ".cfi_escape 0x15, 0x07, 0x2a, 0x28, 0x05, 0x00\n", // pick 7, ge, bra up
            ".cfi_escape 0x16, 0x13, 0x2f, 0xd8, 0xff\n",       // swap, drop, skip bs: hi = mid
            ".cfi_escape 0x17, 0x16, 0x13, 0x2f, 0xd2, 0xff\n", // up: rot, swap, drop, skip bs: lo = mid
            // found:                                                              .. pass block p
            ".cfi_escape 0x12, 0x23, 0x08, 0x06\n", // dup, plus 8, deref
            ".cfi_escape 0x15, 0x05, 0x2e, 0x28, 0x3c, 0x00\n", // pick 5, ne, bra next
            ".cfi_escape 0x12, 0x06, 0x0b, 0x00, ",
            $mask,
            ", 0x1a\n",                                         // dup, deref, const2s the mask, and
            ".cfi_escape 0x15, 0x04, 0x29, 0x28, 0x04, 0x00\n", // pick 4, eq, bra down: parent_ip is in T, a tail call
            ".cfi_escape 0x06, 0x2f, 0x31, 0x00\n",             // deref, skip end
            ".cfi_escape 0x08, 0x20, 0x1c, 0x2f, 0xe0, 0xff\n", // down: const1u 32, minus, skip found
            // loop: linear search, from the innermost entry.
            ".cfi_escape 0x14, 0x23, 0x10, 0x06, 0x14\n", // over, plus 16, deref, over .. block p base p
            ".cfi_escape 0x2a, 0x28, 0x1d, 0x00\n",       // ge, bra next
            ".cfi_escape 0x08, 0x20, 0x1c\n",             // const1u 32, minus            .. block p
            ".cfi_escape 0x12, 0x23, 0x08, 0x06\n",       // dup, plus 8, deref
            ".cfi_escape 0x15, 0x05, 0x2e, 0x28, 0xea, 0xff\n", // pick 5, ne, bra loop
            ".cfi_escape 0x12, 0x06, 0x0b, 0x00, ",
            $mask,
            ", 0x1a\n",                                         // dup, deref, const2s the mask, and
            ".cfi_escape 0x15, 0x03, 0x29, 0x28, 0xde, 0xff\n", // pick 3, eq, bra loop: a tail call
            ".cfi_escape 0x06, 0x2f, 0x05, 0x00\n",             // deref, skip end
            // next: the following block.
            ".cfi_escape 0x13, 0x06, 0x2f, 0x4e, 0xff\n", // drop, deref, skip block
                                                          // end: the return address is on top.
        )
    };
}
