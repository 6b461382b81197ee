//! Pieces of assembly shared by the hook and the trampoline.

// t6 = this thread's words in thread-local storage, t1 = its block; to 9 if there is none yet, or if there will be none.
macro_rules! load_block {
    () => {
        "la.tls.ie t6, rftrace_thread_block
        add t6, t6, tp
        ld t1, 0(t6)
        li t2, {untraced}
        bgeu t2, t1, 9f\n"
    };
}

// t0 = the next record of this thread, reserved; to 9 if there is none. t1 = the block; t3 to t5 change. Processors
// promise to get through the code between both instructions. The cursor is read before the mask: a handler changes it
// on the way to another buffer, so if it is still the same below, the mask is its buffer's.
macro_rules! reserve_record {
    () => {
        "addi t3, t1, {cursor}
        3:
        ld t0, 0(t3)
        ld t4, {chunk_mask}(t1)
        and t5, t0, t4
        beqz t5, 9f
        lr.d t5, (t3)
        bne t5, t0, 3b
        addi t5, t0, {record_bytes}
        sc.d t5, t5, (t3)
        bnez t5, 3b\n"
    };
}

// A register = whether recording is on, one of `enabled`.
macro_rules! load_switch {
    ($register:literal) => {
        concat!("lla ", $register, ", {switch}\nlbu ", $register, ", {enabled}(", $register, ")\n")
    };
}
