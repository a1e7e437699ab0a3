"""Output vector of a query: division, inverse rotation, block exponent. Formulas: docs/numerics.md, section 6."""

TEXT = """
.var inverse fraction high
output:
    ld normaliser
    call log2
    ld top
    sub #16                 ; the row of the maximum alone adds 2^16 and more
    st top
    ld normaliser
    asr top
    and =0xFFFF
    st fraction
    asr #INVERSE_FRACTION
    tab #1
    add =INVERSE_BASE
    st inverse
    ld fraction
    asr #INVERSE_FRACTION
    add #INVERSE_PIECES
    tab #1
    st element
    ld fraction
    and #(1 << INVERSE_FRACTION) - 1
    mul element
    asr #INVERSE_FRACTION
    st element
    ld inverse
    sub element
    st inverse
    set p0, sums
    set p1, x
    cnt #DIM
divide_next:                ; the product has 40 bits, so the high and the low part are multiplied one by one
    ld [p0]+
    asr top
    min =SCALED_MAX
    max =-SCALED_MAX - 1
    st element
    asr #PART_BITS
    st high
    ld element
    and =(1 << PART_BITS) - 1
    st element
    ld inverse
    mul element
    add =1 << INVERSE_BITS - 1
    asr #PART_BITS
    st element
    ld inverse
    mul high
    add element
    asr #INVERSE_BITS - PART_BITS
    min =OUTPUT_MAX
    max =-OUTPUT_MAX - 1
    st [p1]+
    loop divide_next
    call transform
; the least exponent that makes 16 bits of every element
    ld #0
    st element
    set p0, y
    cnt #DIM
widest_next:
    ld #-1
    sub [p0]                ; ~element
    max [p0]+
    max element
    st element
    loop widest_next
    ld #-1
    st top
    ld element
    jz packed_exponent
    call log2
packed_exponent:
    ld top
    sub #VECTOR_BITS - 2
    max #0
    st shifting
    ld lane
    add =exponents
    ptr p0
    ld shifting
    st [p0]
    set p2, y
    ld #DIM
    st number
pack_output:
    ld [p2]
    add [p2]+
    asr shifting
    add #1
    asr #1
    min =VECTOR_MAX
    max =-VECTOR_MAX
    call put
    ld number
    sub #1
    st number
    jnz pack_output
    ret
"""
