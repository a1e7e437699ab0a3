"""Commands that change a slot: OPEN, FREE, MAP, TRUNCATE."""

TEXT = """
open_command:
    call need_slot
    ld slot
    add #is_open
    ptr p0
    ld [p0]
    jnz slot_open
    call need_nothing
    call finish
    out accept
    ld #1
    st [p0]
    ld #0
    call set_rows
    ld #0
    call set_pages
    jmp answer_ok
slot_open:
    ld #SLOT_OPEN
    jmp refuse

free_command:
    call need_open
    call need_nothing
    call finish
    out accept
    ld slot
    add #is_open
    ptr p0
    ld #0
    st [p0]
    jmp answer_ok

; set_rows, set_pages: A to the slot's entry
.var entry
set_rows:
    st entry
    ld slot
    add #rows
    jmp set_entry
set_pages:
    st entry
    ld slot
    add #pages
set_entry:
    ptr p0
    ld entry
    st [p0]
    ret

map_command:
    call need_open
    ld #PAGES_PER_SLOT
    call need_count
    ld count_of             ; eight numbers in a block
    add #7
    and #-8
    call need_words
    ld mapped
    add count_of
    st mapped
    ld #PAGES_PER_SLOT
    sub mapped
    jn full
    ld mapped               ; numbers go where nobody looks until the command is good
    sub count_of
    add own
    ptr p0
    ld count_of
    st number
    ld #0
    st worst
map_next:
    call take
    st [p0]+
    max worst
    st worst
    ld number
    sub #1
    st number
    jnz map_next
    ld worst
    sub =PAGES
    jnn bad_page
    call finish
    out accept
    ld mapped
    st value
    call set_pages
    jmp answer_ok
.var worst
bad_page:
    ld #BAD_PAGE
    jmp refuse

truncate_command:
    call need_open
    call need_nothing
    ld held
    sub count_of
    jn bad_range
    call finish
    out accept
    ld count_of
    st held
keep_rows:                  ; rows held from now on
    ld held
    st value
    call set_rows
    jmp answer_ok
"""
