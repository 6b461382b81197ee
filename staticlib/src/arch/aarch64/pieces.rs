//! Pieces of assembly that the hook and the trampoline share.

// x17 = this thread's words in thread-local storage, x9 = its block; 0 if there is none yet, UNTRACED if there will be none.
macro_rules! load_block {
    () => {
        "mrs x17, tpidr_el0
        adrp x9, :gottprel:rftrace_thread_block
        ldr x9, [x9, :gottprel_lo12:rftrace_thread_block]
        add x17, x17, x9
        ldr x9, [x17]\n"
    };
}

// x15 = the next record of this thread, reserved; to 9 if there is none. x9 = the block; x10, x13, x14, x16 change.
macro_rules! reserve_record {
    () => {
        "add x13, x9, #{cursor}
        ldr x14, [x9, #{chunk_mask}]
        3:
        ldxr x15, [x13]
        tst x15, x14
        b.eq 9f
        add x16, x15, #{record_bytes}
        stxr w10, x16, [x13]
        cbnz w10, 3b\n"
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
