// What the harnesses share: the Verilated design, the names of its ports, exported functions, random numbers.

#pragma once

#include "Vstatecell.h"
#include "verilated.h"

#include <cstdint>

// Verilator writes a double underscore in a port's name as ___05F.
#define i__payload i___05Fpayload
#define i__valid i___05Fvalid
#define i__ready i___05Fready
#define o__payload o___05Fpayload
#define o__valid o___05Fvalid
#define o__ready o___05Fready

#define API extern "C" __attribute__((visibility("default")))

// Sebastiano Vigna's splitmix64.
struct Random {
    uint64_t state = 0;

    uint64_t next() {
        state += 0x9E3779B97F4A7C15ull;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    bool chance(double probability) { return (next() >> 11) * 0x1.0p-53 < probability; }
};
