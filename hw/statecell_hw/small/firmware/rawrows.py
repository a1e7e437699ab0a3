"""READ_ROWS and WRITE_ROWS, and where rows lie."""

TEXT = """
read_rows_command:
    call need_open
    ld #SLOT_ROWS
    call need_count
    call need_nothing
    ld held
    sub count_of
    sub first_of
    jn bad_range
    call finish
    out accept
    ld count_of
    mul #ROW_BLOCKS
    st blocks
    call reply_ok
read_next:
    ld first_of
    call locate
    ld place
    call read_row
    ld place
    add #BANK_WORDS
    call read_row
    ld first_of
    add #1
    st first_of
    ld count_of
    sub #1
    st count_of
    jnz read_next
    jmp end_answer

; read_row: sends the raw row at A
read_row:
    out row
    ld #CODE_WORDS
    st number
read_word:
    ld row
    call put
    ld number
    sub #1
    st number
    jnz read_word
    ld row
    call put
    ld #ROW_WORDS - CODE_WORDS - 1
    jmp zeros

write_rows_command:
    call need_open
    ld #SLOT_ROWS
    call need_count
    ld count_of
    mul #2 * ROW_WORDS
    call need_words
    call need_room
write_next:
    ld target
    call locate
    ld place
    call write_row
    ld place
    add #BANK_WORDS
    call write_row
    ld target
    add #1
    st target
    ld added
    sub #1
    st added
    jnz write_next
    jmp commit_rows

; write_row: the next raw row of the payload to A
write_row:
    out row
    ld #CODE_WORDS
    st number
write_word:
    call take
    out write
    ld number
    sub #1
    st number
    jnz write_word
    call take
    and #255
    out write
    ld #ROW_WORDS - CODE_WORDS - 1
    st number
skip_word:
    call take
    ld number
    sub #1
    st number
    jnz skip_word
    jmp count_row

; ---- rows that are added -------------------------------------------------------------------------------------------
; need_room: refuses more rows than the mapped pages hold; target: the first, added: how many
.var target added
need_room:
    ld count_of
    st added
need_room_added:
    ld held
    st target
    ld mapped
    mul #PAGE_ROWS
    sub held
    sub added
    jn full
    ret

; commit_rows: rows before target count from now on
commit_rows:
    call finish
    out accept
    ld target
    st held
    jmp keep_rows

count_row:
    set p3, rows_written
    ld #1
    jmp count

; locate: place = address of row A of the slot
.var place within
locate:
    st within
    asr #PAGE_LOG
    add own
    ptr p3
    ld within
    and #PAGE_ROWS - 1
    st within
    ld [p3]
    mul #PAGE_ROWS
    add within
    mul #STORE_WORDS
    st place
    ret
"""
