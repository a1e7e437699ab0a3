// The two functions of zlib that Verilator's FST writer calls, as stored blocks: valid zlib data, not made smaller.
// With it waveforms need no development package of zlib.
#pragma once
#include <cstring>

typedef unsigned long uLong;
typedef unsigned long uLongf;
typedef unsigned char Bytef;
enum { Z_OK = 0, Z_BUF_ERROR = -5 };

static inline uLong compressBound(uLong size) { return size + 5 * (size / 65535 + 1) + 6; }

static inline int compress2(Bytef* target, uLongf* target_size, const Bytef* source, uLong size, int /*level*/) {
    if (*target_size < compressBound(size)) return Z_BUF_ERROR;
    Bytef* out = target;
    *out++ = 0x78;
    *out++ = 0x01;
    uLong a = 1, b = 0;  // Adler-32
    uLong done = 0;
    do {
        const uLong block = size - done < 65535 ? size - done : 65535;
        *out++ = done + block == size;
        *out++ = block & 255;
        *out++ = block >> 8;
        *out++ = ~block & 255;
        *out++ = (~block >> 8) & 255;
        for (uLong i = 0; i < block; ++i) {
            a = (a + source[done + i]) % 65521;
            b = (b + a) % 65521;
            *out++ = source[done + i];
        }
        done += block;
    } while (done < size);
    *out++ = b >> 8;
    *out++ = b & 255;
    *out++ = a >> 8;
    *out++ = a & 255;
    *target_size = out - target;
    return Z_OK;
}
