"""The counters: 16 bits in each data word."""

WORD = """\
    add [p3]
    st carry
    and =0xFFFF
    st [p3]+
    ld carry
    asr #16
"""
"""One word of a counter, its carry left in A."""

TEXT = """
.array cycles 4             ; counters, 16 bits in each word, in the order that COUNTERS answers
.array key_rows 4
.array value_rows 4
.array rows_written 4
.array link_in 4
.array link_out 4
.array stalls 4
.array passes 4
; tick: counts the cycles since the last tick; the cycle counter must not go round in between
.var now seen               ; the cycle counter now, and at the last tick
tick:
    ld clock
    st now
    sub seen
    and =(1 << CLOCK_BITS) - 1
    st carry
    ld now
    st seen
    set p3, cycles
    ld carry

; count: adds A, below 2^30, to the counter at p3
.var carry
count:
""" + 3 * WORD + """\
    add [p3]
    and =0xFFFF
    st [p3]
    ret

clear_counters:
    set p3, cycles
    cnt #32
clear_next:
    ld #0
    st [p3]+
    loop clear_next
    ret
"""
