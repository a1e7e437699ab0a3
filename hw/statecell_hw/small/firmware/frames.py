"""Frames in: header, payload word by word, CRC. What `link/deframer.py` is in the large device."""

TEXT = """
.array header 8             ; request header, a word each
.var ended                  ; the frame's last word was taken
.var left                   ; words of payload to come
.var status value blocks    ; of the answer
.var got check              ; word taken; CRC
.var taken                  ; words in since they were counted last

; ---- reset ---------------------------------------------------------------------------------------------------------
    call close_slots
    call clear_counters
    ld clock
    st seen
    ld #0
    st taken
    st given

; ---- one frame after the other -------------------------------------------------------------------------------------
main:
    out clear
    ld #0
    st ended
    st value
    st blocks
    ld #8
    st left
    set p0, header
read_header:
    call get
    st [p0]+
    ld ended
    jnz short
    ld left
    sub #1
    st left
    jnz read_header
    ld header
    and #255
    sub #VERSION
    jnz strange
    ld header + 3           ; blocks of eight words
    mul #8
    st left
    jmp dispatch

short:                      ; the frame ends within its header
    ld left
    sub #1
    jz bad_frame            ; with its last word
    ld #0
    st header
    st header + 2
    ld =0xFFFF
    st header + 1
    jmp bad_frame

strange:                    ; of another version: BAD_VERSION if it is long enough to be a frame
    call get
    ld ended
    jnz bad_frame
    call get
    call swallow
    ld #BAD_VERSION
    jmp reject

; ---- the end of a frame --------------------------------------------------------------------------------------------
; finish: takes what is left; returns if the frame is good, else answers it
finish:
    ld left
    jz trailer
    call take
    jmp finish
trailer:
    ld crc
    st check
    call get
    st got_low
    ld ended
    jnz bad_frame
    call get
    st got_high
    ld ended
    jz too_long
    ld check
    sub got_low
    and =0xFFFF
    jnz bad_crc
    ld check
    asr #16
    sub got_high
    and =0xFFFF
    jnz bad_crc
    ret
.var got_low got_high
too_long:
    call swallow
bad_frame:
    ld #BAD_FRAME
    jmp reject
bad_crc:
    ld #BAD_CRC
reject:
    st status
    out reject
    jmp answer_status

; refuse: the status in A stands unless the frame itself is bad
refuse:
    st status
    call finish
    ld #0
    out accept
answer_status:
    ld #0
    st value
    st blocks
    call reply
    jmp end_answer

; ---- words in ------------------------------------------------------------------------------------------------------
; take: A = next word of the payload; a frame that ends here is bad
take:
    call get
    ld ended
    jnz bad_frame
    ld left
    sub #1
    st left
    ld got
    ret

; get: A = got = next word of the frame; ended = 1 if it is the last
get:
    jni get_wait
    ld word
    out crc
    st got
    asr #16
    st ended
    ld taken
    add #1
    st taken
    ld got
    and =0xFFFF
    st got
    ret
get_wait:
    call tick
    jmp get

; swallow: takes what is left of the frame
swallow:
    ld ended
    jnz return
    call get
    jmp swallow
return:
    ret
"""
