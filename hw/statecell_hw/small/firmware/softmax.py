"""Online softmax and accumulation of a query. Formulas: docs/numerics.md, sections 5 and 6."""

LANE = """\
    ld weight
    mul nib
    add [p0]
    st [p0]+
"""
"""One lane of a weighted row; four of them stand between two turns of the loop, as in the dot product."""

TEXT = """
.var goal maximum ahead below octaves power weight normaliser empty
weigh_rows:
    call begin_rows
    ld at
    st ahead
    add =scores
    ptr p2                  ; the row's score
    ptr p1                  ; the score that the goal takes in next
    ld =LOWEST
    st goal
    ld #1
    st empty
    call clear_sums
weigh_next:
    ld at
    call locate
; the goal sees LOOKAHEAD rows ahead
look_ahead:
    ld ahead
    sub end_at
    jz climb
    ld at
    add #LOOKAHEAD
    sub ahead
    jn climb
    ld [p1]+
    add =STEP_SIZE - 1
    asr #STEP_FRACTION
    max goal
    st goal
    ld ahead
    add #1
    st ahead
    jmp look_ahead
climb:
    ld empty
    jnz take_goal
    ld goal
    sub maximum
    jz climbed
    ld maximum
    add #1
    st maximum
    set p0, sums
    cnt #DIM
shift_next:
    ld [p0]
    asr #STEP_OCTAVES
    st [p0]+
    loop shift_next
    ld normaliser
    asr #STEP_OCTAVES
    st normaliser
climbed:
    ld [p2]                 ; a row that still needs more drops what was before it
    add =STEP_SIZE - 1
    asr #STEP_FRACTION
    st below
    ld maximum
    sub below
    jnn weigh
    call clear_sums
take_goal:
    ld goal
    st maximum
    ld #0
    st empty
weigh:
    ld maximum
    mul =STEP_SIZE
    sub [p2]+
    st below
    tab #0
    st power
    ld below
    asr #SCORE_FRACTION
    min #31
    st octaves
    ld #BANK_WORDS
    call scale_in_force
    ld is_low
    jnz weigh_values        ; a low plane shares the weight of its high plane
    ld power
    mul #1 << WEIGHT_BITS - EXP_BITS + 1
    asr octaves
    add #1
    asr #1
    add normaliser
    st normaliser
weigh_values:
    ld #VALUE_EXPONENT
    sub exponent
    add octaves
    min #31
    st octaves
    ld mantissa             ; its magnitude: the weight is rounded without the sign
    jnn weigh_positive
    mul #-1
weigh_positive:
    mul #2
    st weight
    ld power
    mul weight
    asr octaves
    add #1
    asr #1
    st weight
    ld mantissa
    jnn accumulate
    ld weight
    mul #-1
    st weight
accumulate:
    ld place
    add #BANK_WORDS
    out row
    set p0, sums
    cnt #DIM // 4
sum_next:
""" + 4 * LANE + """\
    loop sum_next
    call next_row
    jnz weigh_next
    ret

clear_sums:
    ld #0
    st normaliser
    set p0, sums
    cnt #DIM
clear_sum:
    st [p0]+
    loop clear_sum
    ret
"""
