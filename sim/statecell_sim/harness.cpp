// C side of the simulated board: the whole clock loop, so that one call from Python runs thousands of cycles.
//
// A cycle: drive the inputs, settle with the clock low, sample both handshakes, raise the clock. A word moves in
// cycle c where valid and ready are both high just before the rising edge that ends cycle c; that c is the stamp.
// The source holds valid and payload until the word is taken; only the choice to offer or accept is stalled.

#include "model.h"
#if VM_TRACE
#include "verilated_fst_c.h"
#endif

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>

namespace {

constexpr unsigned LINK_BYTES = STATECELL_LINK_BYTES;
constexpr uint64_t CLOCK_CHECK = 256;  // cycles between two looks at the wall clock

enum Status { DONE = 0, CYCLES = 1, SECONDS = 2, CAPACITY = 3, UNSTABLE = 4 };

// Payload of at most 64 bits: one integer. Little-endian hosts only, as the words of the wide form are.
template <class T> void put(T& port, const uint8_t* data, bool last) {
    uint64_t value = 0;
    std::memcpy(&value, data, LINK_BYTES);
    port = static_cast<T>(value | (static_cast<uint64_t>(last) << (8 * LINK_BYTES)));
}
template <class T> bool get(const T& port, uint8_t* data) {
    const uint64_t value = port;
    std::memcpy(data, &value, LINK_BYTES);
    return (value >> (8 * LINK_BYTES)) & 1;
}
// Wider payload: 32-bit words, the flag alone in bit 0 of the word after the data.
template <std::size_t N> void put(VlWide<N>& port, const uint8_t* data, bool last) {
    port.m_storage[N - 1] = 0;
    std::memcpy(port.m_storage, data, LINK_BYTES);
    port.m_storage[LINK_BYTES / 4] |= static_cast<uint32_t>(last) << (8 * (LINK_BYTES % 4));
}
template <std::size_t N> bool get(const VlWide<N>& port, uint8_t* data) {
    std::memcpy(data, port.m_storage, LINK_BYTES);
    return (port.m_storage[LINK_BYTES / 4] >> (8 * (LINK_BYTES % 4))) & 1;
}

// When one edge of the link pauses: a repeated bit pattern or a seeded random choice, each cycle.
struct Edge {
    uint64_t probability = 0;  // pause where a 32-bit draw is below this
    uint64_t pattern = 0;      // bit (cycle % length) set: pause
    uint32_t length = 0;       // 0: no pattern
    Random random;

    bool pause(uint64_t cycle) {
        if (length && ((pattern >> (cycle % length)) & 1)) return true;
        if (!probability) return false;
        return (random.next() & 0xFFFFFFFFull) < probability;
    }
};

struct Sim {
    std::unique_ptr<VerilatedContext> context{new VerilatedContext};
    std::unique_ptr<Vstatecell> top{new Vstatecell{context.get(), "statecell"}};
#if VM_TRACE
    std::unique_ptr<VerilatedFstC> trace;
#endif
    uint64_t cycle = 0;
    uint64_t input_waits = 0;   // cycles in which a word was offered and not taken
    uint64_t output_waits = 0;  // cycles in which a word was there and not accepted
    Edge idle, stall;
    bool offered = false;  // an input word is on the port and was not taken yet
    bool held = false;     // the last cycle left an output word waiting
    uint8_t held_data[LINK_BYTES];
    bool held_last = false;

    Sim() { context->traceEverOn(VM_TRACE); }
    ~Sim() {
        top->final();
#if VM_TRACE
        if (trace) trace->close();
#endif
    }
    void low() {
        top->clk = 0;
        top->eval();
        dump(10 * cycle);
    }
    void high() {
        top->clk = 1;
        top->eval();
        dump(10 * cycle + 5);
        ++cycle;
    }
    void dump(uint64_t time) {
#if VM_TRACE
        if (trace) trace->dump(time);
#else
        (void)time;
#endif
    }
    bool output_stable(const uint8_t* data, bool last) const {
        return !held || (top->o__valid && last == held_last && !std::memcmp(data, held_data, LINK_BYTES));
    }
};

}  // namespace

// One exchange, kept by the caller between calls. Mirrored field by field in simulator.py.
struct Job {
    const uint8_t* in_data;     // in_words * LINK_BYTES bytes
    const uint8_t* in_last;     // in_words flags
    uint64_t in_words;
    uint64_t in_position;       // words taken so far
    uint64_t in_frames;         // frames taken so far
    uint64_t* in_stamps;        // cycle of the last word of each frame in
    uint8_t* out_data;          // out_capacity * LINK_BYTES bytes
    uint8_t* out_last;
    uint64_t out_capacity;      // words
    uint64_t out_words;         // words received so far
    uint64_t out_frames;        // frames received so far
    uint64_t out_expected;      // frames to receive
    uint64_t* out_stamps;       // cycle of the last word of each frame out; null: not wanted
};

API unsigned sc_link_bytes() { return LINK_BYTES; }
API Sim* sc_create() { return new Sim; }  // not yet reset
API void sc_destroy(Sim* sim) { delete sim; }
API uint64_t sc_cycles(const Sim* sim) { return sim->cycle; }
API int sc_offered(const Sim* sim) { return sim->offered; }
API void sc_waits(const Sim* sim, uint64_t* input, uint64_t* output) {
    *input = sim->input_waits;
    *output = sim->output_waits;
}

// Two cycles of reset with both edges idle. The cycle count goes on: stamps stay unique.
API void sc_reset(Sim* sim) {
    sim->top->rst = 1;
    sim->top->i__valid = 0;
    sim->top->o__ready = 0;
    sim->offered = false;
    sim->held = false;
    for (int i = 0; i < 2; ++i) {
        sim->low();
        sim->high();
    }
    sim->top->rst = 0;
}

// edge 0: idle cycles of the source; edge 1: stalls of the sink.
API void sc_pauses(Sim* sim, int edge, uint64_t probability, uint64_t pattern, uint32_t length, uint64_t seed) {
    Edge& target = edge ? sim->stall : sim->idle;
    target.probability = probability;
    target.pattern = pattern;
    target.length = length;
    target.random.state = seed;
}

// Writes an FST file from now on; returns 0 where the library was built without tracing.
API int sc_trace(Sim* sim, const char* path) {
#if VM_TRACE
    sim->trace.reset(new VerilatedFstC);
    sim->top->trace(sim->trace.get(), 99);
    sim->trace->open(path);
    return sim->trace->isOpen();
#else
    (void)sim;
    (void)path;
    return 0;
#endif
}

API void sc_flush(Sim* sim) {
#if VM_TRACE
    if (sim->trace) sim->trace->flush();
#else
    (void)sim;
#endif
}

// Runs until the job is done, max_cycles or max_seconds have passed, the output buffer is full, or the device broke
// the stream rule (a waiting word changed or vanished). The caller resumes with the same job after all but the last.
API int sc_run(Sim* sim, Job* job, uint64_t max_cycles, double max_seconds) {
    using clock = std::chrono::steady_clock;
    const auto deadline = clock::now() + std::chrono::duration<double>(max_seconds);
    Vstatecell& top = *sim->top;
    for (uint64_t spent = 0;; ++spent) {
        const bool pending = job->in_position < job->in_words;
        if (!pending && job->out_frames >= job->out_expected) return DONE;
        if (job->out_words >= job->out_capacity) return CAPACITY;
        if (spent >= max_cycles) return CYCLES;
        if (spent % CLOCK_CHECK == CLOCK_CHECK - 1 && clock::now() >= deadline) return SECONDS;

        if (!sim->offered && pending && !sim->idle.pause(sim->cycle)) {
            put(top.i__payload, job->in_data + job->in_position * LINK_BYTES, job->in_last[job->in_position]);
            sim->offered = true;
        }
        const bool wanted = job->out_frames < job->out_expected;
        const bool accept = wanted && !sim->stall.pause(sim->cycle);
        top.i__valid = sim->offered;
        top.o__ready = accept;
        sim->low();

        const bool taken = sim->offered && top.i__ready;
        const bool present = top.o__valid;
        if (present || sim->held) {
            uint8_t* data = job->out_data + job->out_words * LINK_BYTES;
            const bool last = get(top.o__payload, data);
            if (!sim->output_stable(data, last)) return UNSTABLE;
            sim->held = present && !accept;
            if (sim->held) {
                std::memcpy(sim->held_data, data, LINK_BYTES);
                sim->held_last = last;
                ++sim->output_waits;
            } else {
                job->out_last[job->out_words++] = last;
                if (last) {
                    if (job->out_stamps) job->out_stamps[job->out_frames] = sim->cycle;
                    ++job->out_frames;
                }
            }
        }
        if (taken) {
            if (job->in_last[job->in_position]) job->in_stamps[job->in_frames++] = sim->cycle;
            ++job->in_position;
            sim->offered = false;
        } else if (sim->offered) {
            ++sim->input_waits;
        }
        sim->high();
    }
}
