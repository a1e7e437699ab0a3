"""ATTEND: ranges, queries, and one query after the other."""

TEXT = """
.array bounds 8             ; start and end of each query
.array codes LANES * DIM    ; query codes
.array signs LANES          ; 1 or -1
.array mantissas LANES
.array aligns LANES         ; shift of the scores at row exponent 0
.array exponents 16         ; of the output
.array scores SLOT_ROWS     ; of one query
.array sums DIM             ; accumulators of one query
.var lane at end_at         ; query, row, end of its rows
.var first_row end_row      ; of all queries

attend_command:
    call need_open
    ld header + 7
    and #255
    sub #SHIFT_LIMIT + 1
    jnn bad_flags
    ld #LANES
    call need_count
    ld count_of
    mul #DIM
    add #8
    call need_words
    set p0, bounds
    ld #8
    st number
bound_next:
    call take
    st [p0]+
    ld number
    sub #1
    st number
    jnz bound_next
    set p0, bounds
    ld count_of
    st number
    ld =65536
    st first_row
    ld #0
    st end_row
range_next:
    ld [p0]
    min first_row
    st first_row
    ld [p0]+
    sub [p0]
    jnn bad_range
    ld end_row
    max [p0]
    st end_row
    ld held
    sub [p0]+
    jn bad_range
    ld number
    sub #1
    st number
    jnz range_next
    ld #0
    st lane
query_next:
    call query
    call next_lane
    jnz query_next
    call finish
    ld #0
    out accept
    ld count_of
    mul #VECTOR_BLOCKS
    add #1
    st blocks
    call reply_ok
    set p3, passes
    ld #1
    call count
    set p3, key_rows
    ld end_row
    sub first_row
    call count
    set p3, value_rows
    ld end_row
    sub first_row
    call count
    set p0, exponents
    cnt #16
exponent_clear:
    ld #0
    st [p0]+
    loop exponent_clear
    st lane
lane_next:
    call score_rows
    call weigh_rows
    call output
    call next_lane
    jnz lane_next
    set p0, exponents       ; a byte each
    ld #8
    st number
exponent_next:
    ld [p0]+
    st element
    ld [p0]+
    mul #256
    add element
    call put
    ld number
    sub #1
    st number
    jnz exponent_next
    jmp end_answer

; next_lane: A = 0 after the last query
next_lane:
    ld lane
    add #1
    st lane
    sub count_of
    ret

; query: the payload's next vector to codes, sign, mantissa and shift of query `lane`
query:
    call vector
    call orient
    call scale_of_start
    ld wide_shift
    sub #QUERY_FRACTION - 3
    st wide_shift
    ld =-QUERY_LIMIT
    st least
    ld =QUERY_LIMIT - 1
    st greatest
    ld lane
    mul #DIM
    add =codes
    ptr p1
    call byte_codes
    ld turned               ; 128 or 0
    asr #6
    st shifting
    ld #1
    sub shifting
    st shifting
    ld lane
    add =signs
    ptr p0
    ld shifting
    st [p0]
    ld lane
    add =mantissas
    ptr p0
    ld best
    and #7
    add #8
    st [p0]
    ld best
    asr #SCALE_MANTISSA
    st shifting
    ld header + 7
    and #255
    add #QUERY_FRACTION - 2 + PARTIAL_GUARD
    sub shifting
    st shifting
    ld lane
    add =aligns
    ptr p0
    ld shifting
    st [p0]
    ret

; begin_rows: at = start of query `lane`, end_at = its end
begin_rows:
    ld lane
    mul #2
    add =bounds
    ptr p0
    ld [p0]+
    st at
    ld [p0]
    st end_at
    ret

; next_row: A = 0 after the last row
next_row:
    ld at
    add #1
    st at
    sub end_at
    ret
"""
