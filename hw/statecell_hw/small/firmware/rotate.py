"""Vectors in, rotated. Formulas: docs/numerics.md, section 2."""

TEXT = """
.array x DIM                ; a vector as it came, and the rotation's other half
.array y DIM                ; a vector rotated
; vector: y = the payload's next vector, rotated and rounded
vector:
    set p0, x
    cnt #DIM
vector_next:                ; what `take` does, but for what can be done once
    jni vector_wait
    ld word
    out crc
    st got
    ld taken
    add #1
    st taken
    ld got
    asr #16
    jnz bad_frame
    ld #1                   ; the product has the sign of 16 bits
    mul got
    st [p0]+
    loop vector_next
    ld left
    sub #DIM
    st left
    call transform
    set p0, y
    cnt #DIM
round_next:
    ld [p0]
    add #ROTATE_HALF
    asr #ROTATE_SHIFT
    min =VECTOR_MAX
    max =-VECTOR_MAX
    st [p0]+
    loop round_next
    ret

vector_wait:
    call tick
    jmp vector_next

; transform: y = H x. Each step makes sums of neighbours and behind them their differences, which turns the bits of an
; element's place by one: after as many steps as there are bits every element is where it belongs.
transform:
    set p0, x
    set p1, y
    set p2, y + DIM // 2
    call butterflies
    set p0, y
    set p1, x
    set p2, x + DIM // 2
    call butterflies
    set p0, x
    set p1, y
    set p2, y + DIM // 2
    call butterflies
    set p0, y
    set p1, x
    set p2, x + DIM // 2
    call butterflies
    set p0, x
    set p1, y
    set p2, y + DIM // 2
butterflies:
    cnt #DIM // 2
butterfly_next:
    ld [p0]+
    add [p0]
    st [p1]+
    sub [p0]
    sub [p0]+
    st [p2]+
    loop butterfly_next
    ret
"""
