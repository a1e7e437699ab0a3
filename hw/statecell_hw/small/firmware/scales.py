"""Scales of rows and queries: largest magnitude, least scale, search. Formulas: docs/numerics.md, section 3."""

TEXT = """
.data reciprocals SCALE_RECIPROCALS
; scale_of_best, scale_of_start: reciprocal and wide_shift of a scale; p0 = y
; a quotient with four fraction bits is element x reciprocal >> wide_shift
.var reciprocal wide_shift
scale_of_start:
    ld start
    st best
scale_of_best:
    ld best
    asr #SCALE_MANTISSA
    add #RECIPROCAL_SHIFT
    st wide_shift
    ld best
    and #7
    add =reciprocals
    ptr p0
    ld [p0]
    st reciprocal
    set p0, y
    ld turned               ; the quotients are those of the vector turned
    jz return
    ld reciprocal
    mul #-1
    st reciprocal
    ret

; orient: turned = 128 where y must be turned for its largest magnitude to be negative, else 0; start = the least scale
; that clips nothing
.var turned start top magnitude
orient:
    ld #0
    st least
    st greatest
    set p0, y
    cnt #DIM
extreme_next:
    ld greatest
    max [p0]
    st greatest
    ld least
    min [p0]+
    st least
    loop extreme_next
    ld least                ; the negative one's magnitude, negative
    add greatest
    jn negative_largest
    ld #128
    st turned
    ld greatest
    st magnitude
    jmp least_scale
negative_largest:
    ld #0
    st turned
    sub least
    st magnitude
least_scale:                ; mantissa = ceil(8 magnitude / 2^top), 8 to 16; 16 carries into the exponent
    ld magnitude
    st start
    jz return
    call log2
    ld magnitude
    mul #-8
    asr top
    st start
    ld top
    mul #8
    sub start
    sub #8
    min #SCALE_MAGNITUDE_MAX
    st start
    ret

; log2: top = floor(log2(A)) of A above 0
.var shifting
log2:
    st shifting
    ld #-1
    st top
log2_next:
    ld top
    add #1
    st top
    ld shifting
    asr #1
    st shifting
    jnz log2_next
    ret

; search: best = the scale of least squared error among start and the next smaller ones; the larger one on a tie
.var best best_error error trial tries element
search:
    ld =0x7FFFFFFF
    st best_error
    ld start
    st trial
    st kept
    ld #CANDIDATES
    st tries
try_scale:
    ld trial
    max #0
    st best
    call scale_of_best
    ld #0
    st error
    cnt #DIM
try_next:
    ld reciprocal
    mul [p0]+
    asr wide_shift
    st element
    asr #3
    add #1
    asr #1
    min #CODE_MAX
    max #CODE_MIN
    mul #-16
    add element
    st element
    mul element
    add error
    st error
    loop try_next
    ld best
    and #7
    add #8
    st element
    ld error
    mul element
    mul element
    st error
    ld best                 ; times 4 in the octave of the first
    asr #SCALE_MANTISSA
    st element
    ld start
    asr #SCALE_MANTISSA
    sub element
    jnz compare
    ld error
    mul #4
    st error
compare:
    ld error
    sub best_error
    jnn next_scale
    ld error
    st best_error
    ld best
    st kept
next_scale:
    ld trial
    sub #1
    st trial
    ld tries
    sub #1
    st tries
    jnz try_scale
    ld kept
    st best
    ret
.var kept
"""
