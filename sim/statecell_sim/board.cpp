// The simulated board's end of a pseudo terminal: bytes that a program writes become levels on the pin rx, and what
// the pin tx says becomes bytes, both at the rate that the program set on its end. Built with STATECELL_BYTES it moves
// the bytes through the design's streams instead, without pins.
//
// A cycle: drive the inputs, settle with the clock low, look at the outputs, raise the clock. Nothing is clocked while
// the design rests and no byte comes.

#include "model.h"

#include <asm/termbits.h>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace {

constexpr int FRAME_BITS = 10;             // start, eight data bits, stop
constexpr uint64_t LOOK_CYCLES = 1024;     // between two looks at the terminal and the wall clock
constexpr uint64_t REST_CYCLES = 4096;     // quiet for so long: the design rests
constexpr int REST_MS = 20;                // longest wait for a byte at rest
constexpr uint64_t OUTAGE_BYTES = 300;     // length of an outage of the cable, in bytes
constexpr uint64_t BIT_PARTS = 16;         // moments of a bit in which the cable may go out

// What passes one direction of the wire: a byte and the bits of its ten that are turned over.
struct Wired {
    uint8_t byte;
    uint16_t flips;
};

// Mirrored in board.py.
struct Counts {
    uint64_t bytes_in, bytes_out;
    uint64_t flipped, lost, repeated, inserted, outages;
};

struct Board {
    std::unique_ptr<VerilatedContext> context{new VerilatedContext};
    std::unique_ptr<Vstatecell> top{new Vstatecell{context.get(), "statecell"}};
    int fd = -1;
    double clock_hz = 0;
    double bit = 0;       // cycles of one bit at the rate of the program's end
    uint64_t cycle = 0;
    uint64_t active = 0;  // last cycle in which something happened
    Counts counts{};
    double fault = 0, outage = 0;
    Random random;
    std::deque<Wired> down;    // to the design
    std::deque<uint8_t> up;    // to the terminal
    bool gone = false;

    // bytes
    uint64_t outage_left = 0;  // bytes that the cable stays out

    // pins
    double out_from = 0, out_until = 0;  // cycles in which the cable is out
    int down_bit = -1;         // bit on rx, -1: the line rests
    double down_end = 0;       // cycle in which it ends
    int up_bit = -1;
    double up_sample = 0;
    uint16_t up_shift = 0;

    void high() {
        top->clk = 1;
        top->eval();
        ++cycle;
    }
    void low() {
        top->clk = 0;
        top->eval();
    }

    bool pulled() {
        const bool now = outage > 0 && random.chance(outage);
        counts.outages += now;
        return now;
    }

    // One byte enters a wire; what leaves it.
    template <class Put> void carry(uint8_t byte, Put put) {
        if (swallowed()) return;
        if (!(fault > 0) || !random.chance(fault)) return put(Wired{byte, 0});
        switch (random.next() % 4) {
        case 0:
            ++counts.flipped;
            put(Wired{byte, static_cast<uint16_t>(1u << (random.next() % FRAME_BITS))});
            break;
        case 1:
            ++counts.lost;
            break;
        case 2:
            ++counts.repeated;
            put(Wired{byte, 0});
            put(Wired{byte, 0});
            break;
        default:
            ++counts.inserted;
            put(Wired{static_cast<uint8_t>(random.next()), 0});
            put(Wired{byte, 0});
        }
    }

    // The rate that the program set on its end of the terminal.
    void look_at_rate() {
        termios2 settings{};
        if (!ioctl(fd, TCGETS2, &settings) && settings.c_ospeed) bit = clock_hz / settings.c_ospeed;
    }

    void take_from_terminal() {
        if (!down.empty()) return;  // a rate belongs to the bytes that were written at it
        look_at_rate();
        uint8_t bytes[1024];
        const ssize_t count = read(fd, bytes, sizeof bytes);
        if (count > 0) {
            counts.bytes_in += count;
            for (ssize_t n = 0; n < count; ++n) carry(bytes[n], [this](Wired w) { down.push_back(w); });
        } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
            gone = true;
        }
    }

    void give_to_terminal() {
        while (!up.empty()) {
            uint8_t bytes[1024];
            size_t size = 0;
            for (; size < sizeof bytes && size < up.size(); ++size) bytes[size] = up[size];
            const ssize_t done = write(fd, bytes, size);
            if (done <= 0) {
                if (errno != EAGAIN && errno != EINTR) gone = true;
                return;
            }
            up.erase(up.begin(), up.begin() + done);
        }
    }

    void heard(uint8_t byte) {
        ++counts.bytes_out;
        carry(byte, [this](Wired w) { up.push_back(w.byte ^ static_cast<uint8_t>(w.flips >> 1)); });
    }

#ifdef STATECELL_BYTES
    // The cable is out, or goes out with this byte.
    bool swallowed() {
        if (outage_left) {
            --outage_left;
            return true;
        }
        if (pulled()) outage_left = OUTAGE_BYTES;
        return outage_left;
    }
    bool resting() const { return !top->busy; }
    void drive() {
        top->i__valid = !down.empty();
        if (!down.empty()) top->i__payload = down.front().byte ^ static_cast<uint8_t>(down.front().flips >> 1);
        top->o__ready = 1;
    }
    void look() {
        if (top->i__valid && top->i__ready) {
            down.pop_front();
            active = cycle;
        }
        if (top->o__valid) {
            heard(top->o__payload);
            active = cycle;
        }
    }
    void rest_inputs() { top->i__valid = 0; top->o__ready = 0; }
#else
    bool swallowed() const { return false; }  // the wires go out, not the bytes
    bool out() const { return cycle >= out_from && cycle < out_until; }
    // A byte begins on a wire, and somewhere in it the cable may go out: both wires rest from then on.
    void begin() {
        if (cycle < out_until || !pulled()) return;
        out_from = cycle + random.next() % (FRAME_BITS * BIT_PARTS) * bit / BIT_PARTS;
        out_until = out_from + OUTAGE_BYTES * FRAME_BITS * bit;
    }
    // Time passes while the cable is out, also for a design that rests.
    bool resting() const { return !top->busy && down_bit < 0 && up_bit < 0 && cycle >= out_until; }
    void drive() {
        if (down_bit >= 0 && cycle >= down_end) {
            if (++down_bit == FRAME_BITS) {
                down_bit = -1;
                down.pop_front();
            } else {
                down_end += bit;
            }
        }
        if (down_bit < 0 && !down.empty()) {
            // Back to back: the next byte begins where the last one ended, fraction and all.
            down_end = (cycle - down_end < 1 ? down_end : cycle) + bit;
            down_bit = 0;
            begin();
        }
        if (down_bit >= 0) {
            const Wired& w = down.front();
            const uint16_t levels = static_cast<uint16_t>(w.byte << 1 | 1u << (FRAME_BITS - 1)) ^ w.flips;
            top->rx = out() || (levels >> down_bit) & 1;
            active = cycle;
        } else {
            top->rx = 1;
        }
    }
    void look() {
        const unsigned tx = top->tx || out();
        if (up_bit < 0) {
            if (!tx) {
                up_bit = 0;
                up_sample = cycle + bit / 2;
                begin();
            }
        } else if (cycle >= up_sample) {
            up_shift = static_cast<uint16_t>(up_shift >> 1 | tx << (FRAME_BITS - 1));
            up_sample += bit;
            if (++up_bit == FRAME_BITS) {
                up_bit = -1;
                // A start bit that is over in its middle was none; without stop bit an adapter still hands on a byte.
                if (!(up_shift & 1)) heard(static_cast<uint8_t>(up_shift >> 1));
            }
            active = cycle;
        }
    }
    void rest_inputs() { top->rx = 1; }
#endif
};

}  // namespace

API Board* sb_create(double clock_hz) {
    auto* board = new Board;
    board->clock_hz = clock_hz;
    return board;
}
API void sb_destroy(Board* board) {
    board->top->final();
    delete board;
}
API uint64_t sb_cycles(const Board* board) { return board->cycle; }
API void sb_counts(const Board* board, Counts* counts) { *counts = board->counts; }

// The power of the board: all registers at their first values, memories as they are, the line at rest.
API void sb_reset(Board* board) {
    board->top->rst = 1;
    board->rest_inputs();
    board->down.clear();
    board->down_bit = board->up_bit = -1;
    for (int i = 0; i < 2; ++i) {
        board->low();
        board->high();
    }
    board->top->rst = 0;
}

// From now on each byte, in each direction, is flipped, lost, repeated or preceded by another with probability `fault`,
// and the cable goes out for a while with probability `outage`: on the pins in the midst of the byte, with both wires.
API void sb_faults(Board* board, double fault, double outage, uint64_t seed) {
    board->fault = fault;
    board->outage = outage;
    board->random.state = seed;
}

// Runs for about `seconds`; 0, or 1 if the terminal is gone.
API int sb_run(Board* board, int fd, double seconds) {
    using clock = std::chrono::steady_clock;
    const auto deadline = clock::now() + std::chrono::duration<double>(seconds);
    board->fd = fd;
    while (!board->gone && clock::now() < deadline) {
        board->take_from_terminal();
        if (board->down.empty() && board->resting() && board->cycle - board->active > REST_CYCLES) {
            board->give_to_terminal();
            pollfd waiting{fd, static_cast<short>(POLLIN | (board->up.empty() ? 0 : POLLOUT)), 0};
            poll(&waiting, 1, REST_MS);
            board->take_from_terminal();
            if (board->down.empty()) continue;
            board->active = board->cycle;
        }
        for (uint64_t n = 0; n < LOOK_CYCLES; ++n) {
            board->drive();
            board->low();
            board->look();
            board->high();
        }
        board->give_to_terminal();
    }
    return board->gone;
}
