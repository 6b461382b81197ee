//! Pieces of assembly shared by the hook and the trampoline.

// x17 = this thread's words in thread-local storage, x9 = the place of its cursor, in its block; 0 if there is none
// yet, UNTRACED if there will be none: {block_bit} tells.
macro_rules! load_words {
    () => {
        "mrs x17, tpidr_el0
        adrp x9, :gottprel:rftrace_thread_block
        ldr x9, [x9, :gottprel_lo12:rftrace_thread_block]
        add x17, x17, x9
        ldr x9, [x17]\n"
    };
}

// The same of the cursor alone.
macro_rules! load_cursor {
    () => {
        "mrs x17, tpidr_el0
        adrp x9, :gottprel:rftrace_thread_block
        ldr x9, [x9, :gottprel_lo12:rftrace_thread_block]
        ldr x9, [x17, x9]\n"
    };
}

// x15 = the next record of this thread, reserved; to `none` if there is none. x9 = the cursor's place; x13, x14, x16 change.
//
// One instruction reads cursor and mask, and an interrupted thread runs it anew: a handler may bring the thread to
// another buffer, and then changes both. So if the cursor is still the same below, the mask is its buffer's.
macro_rules! reserve_record {
    (none = $none:literal) => {
        concat!(
            "3:
            ldp x15, x14, [x9]
            tst x15, x14
            b.eq ",
            $none,
            "
            ldxr x13, [x9]
            cmp x13, x15
            b.ne 3b
            add x16, x15, #{record_bytes}
            stxr w13, x16, [x9]
            cbnz w13, 3b\n"
        )
    };
}

// x12 = the place for an entry; x13 = our CFA, from a register, less the frame of the entry below. To `other` if the
// entry below is not above ours, or further than a frame is long; to `full` if there is no room. x9 = the cursor's
// place.
macro_rules! compare_frames {
    (cfa = $cfa:literal, other = $other:literal, full = $full:literal) => {
        concat!(
            "ldp x12, x13, [x9, #{sp} - {cursor}]
            cmp x12, x13
            b.hs ",
            $full,
            "
            ldr x13, [x12, #{frame} - {entry_bytes}]
            sub x13, ",
            $cfa,
            ", x13
            cmn x13, #{max_frame_bytes}
            b.lo ",
            $other,
            "\n"
        )
    };
}

// To `hidden` if the state passed on by the innermost open function hides the calls in it, or is too deep. One register
// is the control block, x12 is one above its entry; w13 = the part passed on; x14 and another one change.
macro_rules! check_state {
    (control = $control:literal, other = $other:literal, hidden = $hidden:literal) => {
        concat!(
            "ldr w13, [x12, #{exit_word} - {entry_bytes}]
            ldr w14, [",
            $control,
            ", #{decisive}]
            and w14, w14, w13
            ldr ",
            $other,
            ", [",
            $control,
            ", #{wanted}]
            cmp w14, ",
            $other,
            "
            b.ne ",
            $hidden,
            "
            and w14, w13, #{depth_mask}
            ldr ",
            $other,
            ", [",
            $control,
            ", #{depth_limit}]
            cmp w14, ",
            $other,
            "
            b.hs ",
            $hidden,
            "\n"
        )
    };
}

// Reserves the entry x12, and writes the record x15. x9 = the cursor's place, x11 = child_ip << 16; x16 = the time. The
// entry's frame is 0, so nobody takes it for one yet. But it counts as an open function, so its exit word is cleared: a
// bit left from its last use would exclude it.
macro_rules! write_record {
    () => {
        "str xzr, [x12, #{exit_word}]
        add x16, x12, #{entry_bytes}
        str x16, [x9, #{sp} - {cursor}]
        str x11, [x15, #{word}]
        mrs x16, cntvct_el0
        stlr x16, [x15]\n"
    };
}

// Writes the entry x12 but for its frame; then x12 is the frame's place. x11 = the word of its exit, x16 = the time, a
// register = the thread's words; x13 and x14 change. Its sequence number is the time, or one more than the last one, if
// larger.
macro_rules! write_entry {
    (words = $words:literal, parent_ip = $parent_ip:literal) => {
        concat!(
            "ldr x13, [",
            $words,
            ", #8]
            lsl x14, x16, #{sequence_bits}
            cmp x14, x13
            csinc x14, x14, x13, hi
            str x14, [",
            $words,
            ", #8]
            stp x11, x14, [x12, #{exit_word}]
            str ",
            $parent_ip,
            ", [x12], #{frame}\n"
        )
    };
}

// A register = whether recording is on, one of `enabled`.
macro_rules! load_switch {
    ($register:literal) => {
        concat!(
            "adrp x",
            $register,
            ", {switch} + {enabled}\nldrb w",
            $register,
            ", [x",
            $register,
            ", :lo12:{switch} + {enabled}]\n"
        )
    };
}
