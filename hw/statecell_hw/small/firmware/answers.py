"""Frames out: header, words, CRC. What `link/framer.py` and `control/responder.py` are in the large device."""

TEXT = """
.var sending many
.var given                  ; words out since they were counted last

; reply: sends the header of the answer
reply:
    out clear
    ld header
    and =0x7F00
    add =0x8000 + VERSION
    call put
    ld header + 1
    call put
    ld header + 2
    call put
    ld blocks
    call put
    ld status
    call put
    ld #0
    call put
    ld value
    call put
    ld #0
    call put
    ret

; answer_ok: a good answer without payload
answer_ok:
    call reply_ok
; end_answer: sends the CRC and goes on to the next frame
end_answer:
    ld crc
    st check
    call put
    call drain
    ld check
    asr #16
    out put, last
    ld given
    add #1
    st given
    call drain
    call tick
    set p3, link_in
    ld taken
    call count
    set p3, link_out
    ld given
    call count
    ld #0
    st taken
    st given
    jmp main

reply_ok:
    ld #OK
    st status
    jmp reply

; put: sends A
put:
    st sending
    call drain
    ld sending
    out put, crc
    ld given
    add #1
    st given
    ret

; zeros: sends A words of zero
zeros:
    st many
    ld #0
    call put
    ld many
    sub #1
    jnz zeros
    ret

; drain: waits until the output is free
drain:
    jno drain_wait
    ret
drain_wait:
    call tick
    jmp drain
"""
