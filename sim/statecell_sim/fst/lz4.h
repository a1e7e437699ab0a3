// The two functions of LZ4 that Verilator's FST writer calls, as literals only: valid LZ4 data, not made smaller.
// With it waveforms need no development package of liblz4.
#pragma once
#include <cstring>

static inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

// One block that holds `size` literals; returns its length, or 0 where `capacity` is too small.
static inline int LZ4_compress_default(const char* source, char* target, int size, int capacity) {
    if (capacity < LZ4_compressBound(size)) return 0;
    unsigned char* out = reinterpret_cast<unsigned char*>(target);
    if (size < 15) {
        *out++ = static_cast<unsigned char>(size << 4);
    } else {
        *out++ = 15 << 4;
        int rest = size - 15;
        for (; rest >= 255; rest -= 255) *out++ = 255;
        *out++ = static_cast<unsigned char>(rest);
    }
    std::memcpy(out, source, size);
    return static_cast<int>(out - reinterpret_cast<unsigned char*>(target)) + size;
}
