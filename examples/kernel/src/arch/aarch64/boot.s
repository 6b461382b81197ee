// From QEMU's direct boot to Rust.
//
// The processor comes in EL1, with the MMU off; the second core the same way, by PSCI. Both switch on the MMU before anything else: the
// tracer's exclusive accesses need normal, cacheable memory. Tasks run with SP_EL0, handlers with SP_EL1, which interrupts.rs sets.

.set DEVICE_TREE, 0x40000000

// MAIR_EL1: memory of kind 0 is that of devices, kind 1 normal with write-back caches.
.set MEMORY_KINDS, 0xff00
// TCR_EL1: 39 bits of virtual addresses, pages of 4 KiB, tables in cacheable memory that both cores see; no upper half.
.set TRANSLATION, 25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23
// SCTLR_EL1: MMU and caches, and the bits that are always 1.
.set CONTROL, 0x30d00800 | 1 | 1 << 2 | 1 << 12

// Entries of the uppermost table: 1 GiB that is used already. No program may execute there.
.set BLOCK, 1 | 1 << 10 | 1 << 54
.set DEVICES, BLOCK | 1 << 53
.set NORMAL, BLOCK | 1 << 2 | 3 << 8

.section .text.boot, "ax"
.globl boot_start
boot_start:
    // The first GiB of virtual memory has the devices, the second all memory, at their physical addresses.
    adrp x0, boot_table
    add x0, x0, :lo12:boot_table
    ldr x1, =DEVICES
    ldr x2, =0x40000000 | NORMAL
    stp x1, x2, [x0]
    dsb sy
    bl enable_mmu
    adrp x0, boot_stack_top
    add x0, x0, :lo12:boot_stack_top
    mov sp, x0
    ldr x0, =DEVICE_TREE
    mov x29, #0
    bl kernel_main
    b .

// The second core: its stack is what PSCI passes on.
.globl core_start
core_start:
    mov x19, x0
    bl enable_mmu
    mov sp, x19
    mov x29, #0
    bl second_core_main
    b .

enable_mmu:
    msr daifset, #15
    msr spsel, #0
    ldr x0, =MEMORY_KINDS
    msr mair_el1, x0
    ldr x0, =TRANSLATION
    msr tcr_el1, x0
    adrp x0, boot_table
    add x0, x0, :lo12:boot_table
    msr ttbr0_el1, x0
    tlbi vmalle1
    dsb nsh
    isb
    ldr x0, =CONTROL
    msr sctlr_el1, x0
    isb
    ret

.ltorg

.section .bss.boot, "aw", @nobits
.p2align 12
.globl boot_table
boot_table:
    .zero 4096
    .zero 64 * 1024
boot_stack_top:
