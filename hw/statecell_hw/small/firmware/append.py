"""APPEND: scale, codes, packing, one plane or two. Formulas: docs/numerics.md, section 3."""

TEXT = """
.var flags

append_command:
    call need_open
    ld header + 7
    asr #8
    st flags
    and #-1 - WIDE
    jnz bad_flags
    ld #SLOT_ROWS
    call need_count
    ld count_of
    mul #2 * DIM
    call need_words
    ld count_of
    st added
    ld flags
    jz append_room
    ld added
    add count_of
    st added
append_room:
    call need_room_added
append_next:
    ld target
    call locate
    ld place
    st low_place
    ld flags
    jz append_key
    ld target
    add #1
    st target
    call locate             ; of the high plane
append_key:
    call append_row
    ld place
    add #BANK_WORDS
    st place
    ld low_place
    add #BANK_WORDS
    st low_place
    call append_row
    ld target
    add #1
    st target
    ld count_of
    sub #1
    st count_of
    jnz append_next
    jmp commit_rows
.var low_place              ; address of the row, or of the low plane

; append_row: the next vector of the payload to the row at low_place, or to two planes there and at place
append_row:
    call vector
    call orient
    ld flags
    jnz append_wide
    call search
    call scale_of_best
    ld place
    out row
    ld #CODE_WORDS
    st number
narrow_next:                ; four codes in a word
    call narrow_code
    and #15
    st packed
    call narrow_code
    and #15
    mul #16
    add packed
    st packed
    call narrow_code
    and #15
    mul #256
    add packed
    st packed
    call narrow_code
    and #15
    mul =4096
    add packed
    out write
    ld number
    sub #1
    st number
    jnz narrow_next
    ld turned
    add best
    out write
    jmp count_row
.var packed

; narrow_code: A = 4-bit code of the next element
narrow_code:
    ld reciprocal
    mul [p0]+
    asr wide_shift
    asr #3
    add #1
    asr #1
    min #CODE_MAX
    max #CODE_MIN
    ret

append_wide:                ; 8-bit codes replace the elements, then each plane is packed
    call scale_of_start
    ld wide_shift
    sub #1
    st wide_shift
    ld #WIDE_MIN
    st least
    ld #WIDE_MAX
    st greatest
    set p1, y
    call byte_codes
    set p0, y
    set p1, x
    cnt #DIM
split_next:                 ; high plane to x, low plane stays in y
    ld [p0]
    add #8
    asr #4
    st [p1]+
    mul #-16
    add [p0]
    st [p0]+
    loop split_next
    ld low_place
    out row
    set p0, y
    call pack_plane
    ld best
    and #7
    add turned
    add #LOW_PLANE_MARK
    out write
    call count_row
    ld place
    out row
    set p0, x
    call pack_plane
    ld turned
    add best
    out write
    jmp count_row

; pack_plane: codes at p0 to the row memory
pack_plane:
    cnt #CODE_WORDS
pack_next:
    ld [p0]+
    and #15
    st packed
    ld [p0]+
    and #15
    mul #16
    add packed
    st packed
    ld [p0]+
    and #15
    mul #256
    add packed
    st packed
    ld [p0]+
    and #15
    mul =4096
    add packed
    out write
    loop pack_next
    ret

; byte_codes: 8-bit codes of y within least and greatest, at p1
.var least greatest
byte_codes:
    cnt #DIM
byte_next:
    ld reciprocal
    mul [p0]+
    asr wide_shift
    add #1
    asr #1
    max least
    min greatest
    st [p1]+
    loop byte_next
    ret
"""
