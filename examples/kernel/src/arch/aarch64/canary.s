// u64 canary(u64 rounds): keeps known values in all registers and the flags while interrupts strike. Returns how often one of them was
// found changed. x16 and x17 are what it counts and compares with.

.macro load register, value
    movz \register, #(\value & 0xffff)
    movk \register, #(\value >> 16 & 0xffff), lsl #16
    movk \register, #(\value >> 32 & 0xffff), lsl #32
    movk \register, #(\value >> 48 & 0xffff), lsl #48
.endm
.macro check register, value
    load x17, \value
    cmp \register, x17
    b.ne 8f
.endm
.macro every action
    \action x0, 0x1122334455667700
    \action x1, 0x1122334455667701
    \action x2, 0x2233445566778802
    \action x3, 0x3344556677889903
    \action x4, 0x445566778899aa04
    \action x5, 0x5566778899aabb05
    \action x6, 0x66778899aabbcc06
    \action x7, 0x778899aabbccdd07
    \action x8, 0x8899aabbccddee08
    \action x9, 0x99aabbccddeeff09
    \action x10, 0xaabbccddeeff0010
    \action x11, 0xbbccddeeff001111
    \action x12, 0xccddeeff00112212
    \action x13, 0xddeeff0011223313
    \action x14, 0xeeff001122334414
    \action x15, 0xff00112233445515
    \action x18, 0x2233445566778818
    \action x19, 0x3344556677889919
    \action x20, 0x445566778899aa20
    \action x21, 0x5566778899aabb21
    \action x22, 0x66778899aabbcc22
    \action x23, 0x778899aabbccdd23
    \action x24, 0x8899aabbccddee24
    \action x25, 0x99aabbccddeeff25
    \action x26, 0xaabbccddeeff0026
    \action x27, 0xbbccddeeff001127
    \action x28, 0xccddeeff00112228
    \action x29, 0xddeeff0011223329
    \action x30, 0xeeff001122334430
.endm
// N and C are set, Z and V are not.
.set FLAGS, 0xa0000000

.section .text.canary, "ax"
.globl canary
.type canary, @function
canary:
    stp x29, x30, [sp, #-128]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp x0, xzr, [sp, #96]      // rounds to go, changes found
    str x18, [sp, #112]
    cbz x0, 9f
2:
    every load
    ldr x16, =FLAGS
    msr nzcv, x16
    mov x16, #1000
3:
    sub x16, x16, #1            // changes no flag
    cbnz x16, 3b
    mrs x16, nzcv
    ldr x17, =FLAGS
    cmp x16, x17
    b.ne 8f
    every check
    b 4f
8:
    ldr x16, [sp, #104]
    add x16, x16, #1
    str x16, [sp, #104]
4:
    ldr x16, [sp, #96]
    sub x16, x16, #1
    str x16, [sp, #96]
    cbnz x16, 2b
9:
    ldr x0, [sp, #104]
    ldr x18, [sp, #112]
    ldp x27, x28, [sp, #80]
    ldp x25, x26, [sp, #64]
    ldp x23, x24, [sp, #48]
    ldp x21, x22, [sp, #32]
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #128
    ret
.size canary, . - canary
.ltorg
