# u64 canary(u64 rounds): keeps known values in all registers, the flags and the red zone while interrupts strike. Returns
# how often one of them was found changed.

.macro set register, value
    mov \register, \value
.endm
.macro check register, value
    mov rcx, \value
    cmp \register, rcx
    jne 8f
.endm
.macro every action
    \action rax, 0x1122334455667701
    \action rdx, 0x2233445566778802
    \action rbx, 0x3344556677889903
    \action rbp, 0x445566778899aa04
    \action rsi, 0x5566778899aabb05
    \action rdi, 0x66778899aabbcc06
    \action r8, 0x778899aabbccdd07
    \action r9, 0x8899aabbccddee08
    \action r10, 0x99aabbccddeeff09
    \action r11, 0xaabbccddeeff0010
    \action r12, 0xbbccddeeff001111
    \action r13, 0xccddeeff00112212
    \action r14, 0xddeeff0011223313
    \action r15, 0xeeff001122334414
.endm

.section .text.canary, "ax"
.globl canary
.type canary, @function
canary:
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    push rdi                    # [rsp + 8]: rounds to go
    push 0                      # [rsp]: changes found
    test rdi, rdi
    jz 9f
2:
    every set
    # The red zone, but for its uppermost word, which pushfq takes.
    .set place, 16
    .rept 15
    mov qword ptr [rsp - place], 0x5a5a0000 + place
    .set place, place + 8
    .endr
    mov ecx, 1000
    std
    stc
3:
    loop 3b                     # changes no flag
    pushfq
    pop rcx
    cld
    and ecx, 0x401              # direction and carry
    cmp ecx, 0x401
    jne 8f
    every check
    .set place, 16
    .rept 15
    cmp qword ptr [rsp - place], 0x5a5a0000 + place
    jne 8f
    .set place, place + 8
    .endr
    jmp 4f
8:
    inc qword ptr [rsp]
4:
    dec qword ptr [rsp + 8]
    jnz 2b
9:
    pop rax
    pop rdi
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret
.size canary, . - canary
