"""Which command it is, what it may ask, and those without a slot. Refusals in the order of docs/protocol.md."""

TEXT = """
.array is_open SLOTS
.array rows SLOTS
.array pages SLOTS
.array table SLOTS * PAGES_PER_SLOT     ; page lists, slot by slot
.var slot own               ; slot of the command; the beginning of its page list
.var count_of first_of      ; count, at most 65536; first
.var held mapped            ; rows and pages of the slot
.data info INFO

dispatch:
    ld header + 2
    st slot
    ld header + 6
    st first_of
    ld header + 5           ; a count of 65536 and more is too much for every command
    jz count_fits
    ld =65536
    jmp count_known
count_fits:
    ld header + 4
count_known:
    st count_of
    ld header
    asr #8
    sub #INFO_OPCODE
    jz info_command
    sub #COUNTERS - INFO_OPCODE
    jz counters_command
    sub #RESET - COUNTERS
    jz reset_command
    sub #CONNECT - RESET
    jz connect_command
    sub #OPEN - CONNECT
    jz open_command
    sub #FREE - OPEN
    jz free_command
    sub #MAP - FREE
    jz map_command
    sub #TRUNCATE - MAP
    jz truncate_command
    sub #APPEND - TRUNCATE
    jz append_command
    sub #ATTEND - APPEND
    jz attend_command
    sub #READ_ROWS - ATTEND
    jz read_rows_command
    sub #WRITE_ROWS - READ_ROWS
    jz write_rows_command
    ld #BAD_OPCODE
    jmp refuse

; ---- checks --------------------------------------------------------------------------------------------------------
; need_slot: refuses a slot that there is not; own
need_slot:
    ld slot
    sub #SLOTS
    jnn bad_slot
    ld slot
    mul #PAGES_PER_SLOT
    add =table
    st own
    ret
bad_slot:
    ld #BAD_SLOT
    jmp refuse

; need_open: refuses a slot that is not open; held and mapped
need_open:
    call need_slot
    ld slot
    add #is_open
    ptr p0
    ld [p0]
    jz slot_closed
    ld slot
    add #rows
    ptr p0
    ld [p0]
    st held
    ld slot
    add #pages
    ptr p0
    ld [p0]
    st mapped
    ret
slot_closed:
    ld #SLOT_CLOSED
    jmp refuse

; need_count: refuses a count that is not 1 to A
.var most
need_count:
    st most
    ld count_of
    jz bad_count
    ld most
    sub count_of
    jn bad_count
    ret
bad_count:
    ld #BAD_COUNT
    jmp refuse

; need_words: refuses another payload than one of A words
need_nothing:
    ld #0
need_words:
    sub left
    jnz bad_length
    ret
bad_length:
    ld #BAD_LENGTH
    jmp refuse
bad_range:
    ld #BAD_RANGE
    jmp refuse
full:
    ld #FULL
    jmp refuse
bad_flags:
    ld #BAD_FLAGS
    jmp refuse

; ---- commands without a slot ---------------------------------------------------------------------------------------
info_command:
    call need_nothing
    call finish
    out accept
    ld #INFO_WORDS // 4
    st blocks
    call reply_ok
    set p0, info
    ld #INFO_WORDS
    st number
info_next:
    ld [p0]
    call put
    ld [p0]+
    asr #16
    call put
    ld number
    sub #1
    st number
    jnz info_next
    jmp end_answer
.var number

counters_command:
    call need_nothing
    call finish
    out accept
    ld #4
    st blocks
    call reply_ok
    set p0, cycles
    ld #32
    st number
counters_next:
    ld [p0]+
    call put
    ld number
    sub #1
    st number
    jnz counters_next
    ld count_of
    sub #CLEAR_COUNTERS
    jnz end_answer
    call clear_counters
    jmp end_answer

reset_command:
    call need_nothing
    call finish
    out accept
    call close_slots
    call clear_counters
    jmp answer_ok

close_slots:
    set p0, is_open
    cnt #SLOTS
close_next:
    ld #0
    st [p0]+
    loop close_next
    ret

connect_command:
    ld count_of
    jz divisor_fits
    sub #LEAST_DIVISOR
    jn bad_count
    ld =65535
    sub count_of
    jn bad_count
divisor_fits:
    call need_nothing
    call finish
    ld session
    st value
    sub slot
    jnz connect_other
    ld first_of
    st value
    ld count_of             ; divisor and session in one word
    mul #256
    mul #256
    add first_of
    out accept, connect
    jmp answer_ok
connect_other:
    out accept
    jmp answer_ok
"""
