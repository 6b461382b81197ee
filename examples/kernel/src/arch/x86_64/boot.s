# From QEMU's direct boot to Rust.
#
# A note tells QEMU the entry point (the PVH boot protocol of Xen, docs/misc/pvh.pandoc there). The processor comes in 32-bit
# protected mode without paging, with flat segments; ebx points to a structure in which the command line is found.

.set PRESENT, 1
.set WRITABLE, 2
.set LARGE_PAGE, 1 << 7
.set CR0_PROTECTED, 1
.set CR0_WRITE_PROTECT, 1 << 16
.set CR0_PAGING, 1 << 31
.set CR4_PAE, 1 << 5
.set MSR_EFER, 0xc0000080
.set EFER_LONG_MODE, 1 << 8
.set MSR_FS_BASE, 0xc0000100

.section .note.pvh, "a", @note
.p2align 2
.long 4                         # bytes of the name
.long 8                         # bytes of the entry point
.long 18                        # XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.quad pvh_start

.section .text.boot, "ax"
.code32
.globl pvh_start
pvh_start:
    cli
    cld
    mov esp, offset boot_stack_top

    # The first 4 GiB of virtual memory are physical memory, in pages of 2 MiB.
    mov eax, offset boot_pml4
    mov ecx, offset boot_pdpt + PRESENT + WRITABLE
    mov [eax], ecx
    mov edi, offset boot_pdpt
    mov eax, offset boot_directories + PRESENT + WRITABLE
    mov ecx, 4
2:
    mov [edi], eax
    add eax, 4096
    add edi, 8
    loop 2b
    mov edi, offset boot_directories
    mov eax, PRESENT + WRITABLE + LARGE_PAGE
    mov ecx, 4 * 512
2:
    mov [edi], eax
    add eax, 2 << 20
    add edi, 8
    loop 2b

    # Long mode: page tables, the mode's bit, paging, a 64-bit code segment.
    mov eax, cr4
    or eax, CR4_PAE
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, offset MSR_EFER
    rdmsr
    or eax, EFER_LONG_MODE
    wrmsr
    mov eax, cr0
    or eax, CR0_PROTECTED + CR0_WRITE_PROTECT + CR0_PAGING
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    push 8
    mov eax, offset long_start
    push eax
    retf

.code64
long_start:
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    lea rsp, [rip + boot_stack_top]
    mov edi, ebx
    xor ebp, ebp
    call kernel_main
    ud2

# The first code of the second core. It starts in real mode, at a page below 1 MiB to which smp.rs has copied this code, and goes to
# long mode in one step. Only 32-bit operands reach the rest of the image, below 4 GiB.
.set TRAMPOLINE, 0x8000
.code16
.p2align 3
.globl core_trampoline
core_trampoline:
    jmp 2f
.p2align 3
core_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
2:
    cli
    xor ax, ax
    mov ds, ax
    mov eax, cr4
    or eax, CR4_PAE
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, offset MSR_EFER
    rdmsr
    or eax, EFER_LONG_MODE
    wrmsr
    lgdtd [TRAMPOLINE + 8]      # core_gdt_pointer
    mov eax, cr0
    or eax, CR0_PROTECTED + CR0_WRITE_PROTECT + CR0_PAGING
    mov cr0, eax
    .byte 0x66, 0xea            # a far jump with a 32-bit offset
    .long core_long_start
    .word 8
.globl core_trampoline_end
core_trampoline_end:

.code64
core_long_start:
    mov eax, 16
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov rsp, [rip + SECOND_CORE_STACK]
    xor ebp, ebp
    call second_core_main
    ud2

.section .rodata.boot, "a"
.p2align 3
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 64-bit code
    .quad 0x00cf93000000ffff    # data
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .quad boot_gdt

.section .bss.boot, "aw", @nobits
.p2align 12
.globl boot_pml4
boot_pml4:
    .zero 4096
boot_pdpt:
    .zero 4096
boot_directories:
    .zero 4 * 4096
    .zero 64 * 1024
boot_stack_top:
