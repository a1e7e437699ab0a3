"""Scores of a query over its rows. Formulas: docs/numerics.md, section 4."""

LANE = """\
    ld [p0]+
    mul nib
    add product
    st product
"""
"""One lane of a dot product; four of them stand between two turns of the loop, to spare its instructions."""

TEXT = """
.var query_codes query_sign query_mantissa query_align
.var product scale part low_part
score_rows:
    ld lane
    add =signs
    ptr p0
    ld [p0]
    st query_sign
    ld lane
    add =mantissas
    ptr p0
    ld [p0]
    st query_mantissa
    ld lane
    add =aligns
    ptr p0
    ld [p0]
    st query_align
    ld lane
    mul #DIM
    add =codes
    st query_codes
    call begin_rows
    ld at
    add =scores
    ptr p2
    ld #0
    st after_low
score_next:
    ld at
    call locate
    ld place
    out row
    ld query_codes
    ptr p0
    ld #0
    st product
    cnt #DIM // 4
dot_next:
""" + 4 * LANE + """\
    loop dot_next
    ld #0
    call scale_in_force
    ld product
    mul mantissa
    mul query_sign
    mul #1 << PARTIAL_GUARD
    st product
    ld query_align
    sub exponent
    max #0
    min #31                 ; beyond it nothing but the sign is left
    st part
    ld product
    asr part
    min =PARTIAL_MAX
    max =-PARTIAL_MAX - 1
    st part
    ld is_low
    jz score_high
    ld part                 ; the low plane's share is added to that of the high plane, which follows
    st low_part
    call score_of
    st [p2]+
    ld #1
    st after_low
    jmp score_done
score_high:
    ld after_low
    jz score_only
    ld part
    add low_part
    call score_of
    st low_score
    ld =-1                  ; the low plane has the same score
    add at
    add =scores
    ptr p3
    ld low_score
    st [p3]
    st [p2]+
    ld #0
    st after_low
    jmp score_done
score_only:
    ld part
    call score_of
    st [p2]+
score_done:
    call next_row
    jnz score_next
    ret
.var low_score after_low

; score_of: A = score of the shares in A
score_of:
    mul query_mantissa
    add #1 << MANTISSA_SHIFT - 1
    asr #MANTISSA_SHIFT
    min =SCORE_MAX
    max =-SCORE_MAX - 1
    ret

; scale_in_force: mantissa (with the sign), exponent and is_low of row `at`, whose bank begins A words behind its place
.var mantissa exponent is_low bank
scale_in_force:
    st bank
    add place
    add #CODE_WORDS
    out row
    ld #0
    st is_low
    ld row
    st scale
    asr #SCALE_MANTISSA
    and #15
    st exponent
    sub #LOW_PLANE
    jnz scale_known
    ld place                ; the scale of the next row, four octaves lower
    st this_place
    ld at
    add #1
    call locate
    ld place
    add bank
    add #CODE_WORDS
    out row
    ld this_place
    st place
    ld #1
    st is_low
    ld row
    st scale
    asr #SCALE_MANTISSA
    and #15
    sub #CODE_BITS
    st exponent
scale_known:
    ld scale
    and #7
    add #8
    st mantissa
    ld scale
    and #128
    jz return
    ld mantissa
    mul #-1
    st mantissa
    ret
.var this_place
"""
