"""Every output stream keeps the shared stream contract: with random stalls, and proved for all inputs.

Each proof is also shown to fail for mutants of its block; those of the contract's checkers themselves are in tests/sim.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from amaranth.hdl import Elaboratable, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.device import append_request, attend_request, map_request
from statecell.link import cobs
from statecell.link.framing import Request
from statecell.link.window import strip
from statecell.model.normalise import normalise, pack_block
from statecell.model.rows import pack
from statecell.spec import formats, frame
from statecell.spec.commands import COUNTER_FIELDS, INFO_FIELDS, Info, Opcode, StateFlag, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.attention.normalise import Normalise
from statecell_hw.attention.pack import BlockPack
from statecell_hw.control.command import Command
from statecell_hw.control.counters import COUNTER_BITS
from statecell_hw.control.drain import Drain
from statecell_hw.control.ingest import Ingest
from statecell_hw.control.passes import DEPTH, INTERVAL, PassQueue
from statecell_hw.control.rawrows import RowReader
from statecell_hw.control.responder import Answer, Responder
from statecell_hw.control.vectors import Vectors
from statecell_hw.layouts import Kind, QueryLoad
from statecell_hw.link.answers import Answers
from statecell_hw.link.cobs import CobsDecoder, CobsEncoder
from statecell_hw.link.deframer import Deframer
from statecell_hw.link.framer import Framer
from statecell_hw.link.intake import Intake
from statecell_hw.recurrent.outputs import Outputs
from statecell_hw.recurrent.prepare import Prepare
from statecell_hw.recurrent.snapshot import Snapshot
from statecell_hw.recurrent.tokens import TokenBuffer
from statecell_hw.serial import SerialCell
from statecell_hw.small.cell import SmallCell
from statecell_hw.stage import Stage
from statecell_hw.tile import Tile
from statecell_hw.top import StateCell
from statecell_sim.contract import ContractViolation, check
from statecell_sim.formal import prove
from statecell_sim.golden import GoldenDevice
from tests.hw.array.vectors import pack_words, signed_words
from tests.hw.rows import expected_pass, random_queries, random_rows, row_words
from tests.hw.streams import words_of

SEED = 31
G = Geometry(
    name="least", head_dim=32, rows=8, lanes=2, slots=1, pages_per_slot=1, page_rows=8, link_bytes=16, query_bits=8
)  # fmt: skip
NARROW = replace(G, link_bytes=2)  # the bytes of few words are many
SMALL = replace(NARROW, small=True)
STATES = replace(G, rows=32, states=1)
NOISE, FACTORS = 0x12345678, 0x876543_C0FFEE_999999_ABCDEF  # of the state that is saved
NORMALISER_LATENCY = 13
COMMAND_CYCLES = 9  # look-up, checks, the harness's verdict after three cycles, completion
LOOK_UP = 4  # cycles in which the cursor finds a row


class Harness(wiring.Component):
    """One input and one output stream of a block; `elaborate` of a subclass plays the block's other neighbours."""

    i: stream.Interface
    o: stream.Interface

    def __init__(self, block: Any, source: Any, sink: Any) -> None:
        self.block = block
        super().__init__({"i": In(stream.Signature(source)), "o": Out(stream.Signature(sink))})

    def base(self, source: Any, sink: Any) -> Module:
        """The block, connected."""
        m = Module()
        m.submodules.block = self.block
        for a, b in ((self.i, source), (sink, self.o)):
            m.d.comb += [b.valid.eq(a.valid), b.payload.eq(a.payload), a.ready.eq(b.ready)]
        return m


def merge(m: Module, source: Any, sinks: dict[str, Any]) -> None:
    """Give each word of `source` to the stream number `to` of `sinks`: the field of the payload with its name."""
    for number, (name, sink) in enumerate(sinks.items()):
        m.d.comb += sink.payload.eq(source.payload[name])
        with m.If(source.payload.to == number):
            m.d.comb += [sink.valid.eq(source.valid), source.ready.eq(sink.ready)]


class Staged(Harness):
    """A register in a stream."""

    def __init__(self) -> None:
        super().__init__(Stage(8), unsigned(8), unsigned(8))

    def elaborate(self, platform: Any) -> Elaboratable:
        return self.base(self.block.i, self.block.o)


def test_stage() -> None:
    words = list(range(40))
    check(Staged, lambda _: words, words, interval=1, seed=SEED)


# -- link --------------------------------------------------------------------------------------------------------------
class OneOf(Harness):
    """One output of the deframer; the others are always taken."""

    def __init__(self, name: str, g: Geometry = G) -> None:
        block: Any = Deframer(g)
        self.name = name
        super().__init__(block, block.i.payload.shape(), getattr(block, name).payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = self.base(self.block.i, getattr(self.block, self.name))
        for name in {"header", "payload", "verdict"} - {self.name}:
            m.d.comb += getattr(self.block, name).ready.eq(1)
        return m


def frames(rng: random.Random, blocks: int) -> list[bytes]:
    """Frames of one size, every other with a wrong CRC."""
    out = []
    for number in range(6):
        header = frame.pack_header(
            frame.REQUEST_HEADER, version=frame.VERSION, blocks=blocks, sequence=rng.randrange(1 << 16)
        )
        sealed = bytearray(frame.seal(header + rng.randbytes(16 * blocks), G.link_bytes))
        sealed[-frame.trailer_bytes(G.link_bytes)] ^= number % 2
        out.append(bytes(sealed))
    return out


@pytest.mark.parametrize("name", ["header", "payload", "verdict"])
def test_deframer(name: str) -> None:
    blocks = 3
    sent = frames(random.Random(SEED), blocks)
    fields = [frame.unpack_header(frame.REQUEST_HEADER, data) for data in sent]
    payload = [data[16 * i :][:16] for data in sent for i in range(1, 1 + blocks)]
    due: dict[str, list[Any]] = {
        "header": fields,
        "payload": [int.from_bytes(word, "little") for word in payload],
        "verdict": [Status.BAD_CRC if number % 2 else Status.OK for number in range(len(sent))],
    }
    words = [word for data in sent for word in words_of(data, G.link_bytes)]
    size = blocks + 2
    cycles = (len(sent) - 1) * (size + 2) + size  # the header and the verdict cost a cycle each
    interval = Fraction(cycles, len(words) - 1)
    check(lambda: OneOf(name), lambda _: due[name], words, interval=interval, seed=SEED)


def test_framer() -> None:
    rng = random.Random(SEED)
    bodies = [rng.randbytes(16 * blocks) for blocks in (2, 1, 5, 3)]
    words = [word for body in bodies for word in words_of(body, G.link_bytes)]
    due = [word for body in bodies for word in words_of(frame.seal(body, G.link_bytes), G.link_bytes)]
    interval = Fraction(len(words) - 1 + len(bodies) - 1, len(words) - 1)  # a trailer of one word between bodies
    check(lambda: Framer(G), lambda _: due, words, interval=interval, seed=SEED)


def frame_bytes(frames: list[bytes]) -> list[dict[str, int]]:
    """Bytes of frames, `last` in the last of each."""
    return [{"data": byte, "last": int(i == len(data) - 1)} for data in frames for i, byte in enumerate(data)]


def stuffed(rng: random.Random) -> list[bytes]:
    """Frames with and without zeros, and longer than a block."""
    frames = [bytes(rng.choice((0, rng.randrange(256))) for _ in range(n)) for n in (1, 2, 30, 60)]
    return [*frames, bytes([5]) * 300, b"\0", bytes([6]) * 254, b"\7\0"]


def test_cobs_decoder() -> None:
    frames = stuffed(random.Random(SEED))
    wire = list(b"".join(cobs.encode(data) for data in frames))
    check(CobsDecoder, lambda _: frame_bytes(frames), wire, interval=1, seed=SEED)


def test_cobs_encoder() -> None:
    frames = stuffed(random.Random(SEED))
    wire = list(b"".join(cobs.encode(data) for data in frames))
    words = frame_bytes(frames)
    # A cycle for each byte in, each byte out, each block, and each byte but zeros to come out of the memory; the last
    # frame's two blocks leave after its last byte.
    blocks = sum(len(cobs.encode(data)) - 1 - sum(byte != 0 for byte in data) for data in frames)
    stored = sum(byte != 0 for data in frames[:-1] for byte in data)
    cycles = len(words) + len(wire) + blocks + stored - 1 - (len(cobs.encode(frames[-1])) + 2)
    check(CobsEncoder, lambda _: wire, words, interval=Fraction(cycles, len(words) - 1), seed=SEED)


class Judged(Harness):
    """One output of the intake, the other always taken, with a session that runs; the device's verdict comes a cycle
    after a frame.
    """

    def __init__(self, name: str, g: Geometry = G) -> None:
        block: Any = Intake(g, SerialLink())
        self.name = name
        super().__init__(block, block.i.payload.shape(), getattr(block, name).payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        block = self.block
        m = self.base(block.i, getattr(block, self.name))
        for name in {"o", "repeat"} - {self.name}:
            m.d.comb += getattr(block, name).ready.eq(1)
        ended = Signal()
        begun = Signal()
        m.d.sync += ended.eq(block.o.valid & block.o.ready & block.o.payload.last)
        m.d.comb += [block.accepted.eq(ended), block.connect.eq(ended & ~begun), block.token.eq(1)]
        m.d.sync += begun.eq(begun | ended)
        return m


def test_intake() -> None:
    rng = random.Random(SEED)
    frames = {}
    for sequence, opcode in enumerate([Opcode.CONNECT, Opcode.APPEND, Opcode.APPEND, Opcode.OPEN]):
        blocks = rng.randrange(4)
        fields = {"version": frame.VERSION, "opcode": opcode, "sequence": sequence, "blocks": blocks}
        body = frame.pack_header(frame.REQUEST_HEADER, **fields) + rng.randbytes(16 * blocks)
        frames[sequence] = frame.seal(body, 4)  # on the wire the CRC is not filled up
    sent = [0, 1, 2, 1, 2, 3, 3]
    again = [1, 2, 3]
    words = frame_bytes([frames[sequence] for sequence in sent])
    due = [word for data in frames.values() for word in words_of(frame.pad(data), G.link_bytes)]
    # A byte a cycle, one more for each word; a frame's head is judged and passed on, and the verdict comes. A frame
    # that was there before is judged and asks for its answer.
    cycles = sum(len(data) + -(-len(data) // G.link_bytes) + 1 + 4 + 1 for data in frames.values())
    cycles += sum(len(frames[sequence]) + 1 + 1 for sequence in again) - 1
    interval = Fraction(cycles, len(words) - 1)
    check(lambda: Judged("o"), lambda _: due, words, interval=interval, seed=SEED)
    check(lambda: Judged("repeat"), lambda _: again, words, interval=interval, seed=SEED)


class Asked(Harness):
    """Answers that nobody asks for again."""

    def __init__(self, g: Geometry = G) -> None:
        block: Any = Answers(g, SerialLink(answer_bytes=128))
        super().__init__(block, block.i.payload.shape(), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        return self.base(self.block.i, self.block.o)


def test_answers() -> None:
    rng = random.Random(SEED)
    bodies = [rng.randbytes(16 * blocks) for blocks in (1, 5, 1, 3)]
    words = [word for body in bodies for word in words_of(frame.seal(body, G.link_bytes), G.link_bytes)]
    due = frame_bytes([body + frame.seal(body, 4)[-4:] for body in bodies])
    # Each byte is stored and sent, a cycle of rest before either; the last answer is only stored.
    cycles = sum(2 + 2 * (len(body) + 4) for body in bodies) - (len(bodies[-1]) + 5) - 1 - G.link_bytes
    check(Asked, lambda _: due, words, interval=Fraction(cycles, len(words) - 1), seed=SEED)


# -- results -----------------------------------------------------------------------------------------------------------
class Credited(Harness):
    """The block packer with a sender that takes its credits: a promise with the first word of each vector."""

    def __init__(self) -> None:
        block: Any = BlockPack(G)
        super().__init__(block, block.i_data.shape(), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        index = Signal(range(G.vector_words))
        go = self.i.valid & self.i.ready
        m.d.comb += [
            self.i.ready.eq((index != 0) | (block.space != 0)),
            block.i_valid.eq(go),
            block.take.eq(go & (index == 0)),
            block.i_data.eq(self.i.payload),
            self.o.valid.eq(block.o.valid),
            self.o.payload.eq(block.o.payload),
            block.o.ready.eq(self.o.ready),
        ]
        with m.If(go):
            m.d.sync += index.eq(index + 1)
        return m


def test_block_packer() -> None:
    rng = torch.Generator().manual_seed(SEED)
    size = 2.0 ** torch.empty(12, 1).uniform_(3, G.transform_bits - 2, generator=rng)
    vectors = (torch.randn(12, G.head_dim, generator=rng) * size / 4).round().to(torch.int64)
    limit = 1 << (G.transform_bits - 1)
    vectors = vectors.clamp(-limit, limit - 1)
    packed, block = pack_block(vectors)
    raw = [word for v in vectors for word in pack_words(v, G.transform_bits, G.word)]
    words = [signed_words(word, G.transform_bits, G.word) for word in raw]
    due = [
        {"data": word, "block": int(b)}
        for v, b in zip(packed, block, strict=True)
        for word in pack_words(v, formats.VECTOR_BITS, G.word)
    ]
    check(Credited, lambda _: due, words, interval=1, seed=SEED)


class Drained(Harness):
    """The normaliser; a word of `i` is what one pass left in all accumulators of a lane, and its sum."""

    def __init__(self) -> None:
        block: Any = Normalise(G)
        source = data.StructLayout({"value": block.elements[0].shape(), "sum": block.drain_sums[0].shape()})
        super().__init__(block, source, block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        held = Signal.like(self.i.payload)
        waits = Signal()
        go = self.i.valid & self.i.ready
        m.d.comb += [
            self.i.ready.eq(~waits & ~block.busy),
            block.done.eq(go),
            block.lanes.eq(1),
            self.o.valid.eq(block.o.valid),
            self.o.payload.eq(block.o.payload),
            block.o.ready.eq(self.o.ready),
            block.drain_sums[0].eq(held.sum),
            *(element.eq(held.value) for element in block.elements),
        ]
        m.d.sync += waits.eq((waits | go) & ~block.capture)
        with m.If(go):
            m.d.sync += held.eq(self.i.payload)
        return m


def test_normaliser() -> None:
    rng = random.Random(SEED)
    passes = []
    for _ in range(12):
        total = rng.randrange(1, 1 << rng.randint(1, G.normaliser_bits - 1))
        passes.append({"value": rng.randint(-8 * total, 7 * total), "sum": total})
    due = []
    for item in passes:
        out = normalise(torch.tensor([[item["value"]] * G.head_dim]), torch.tensor([item["sum"]]))[0].tolist()
        due += [{"data": out[at : at + G.word]} for at in range(0, G.head_dim, G.word)]
    check(Drained, lambda _: due, passes, interval=NORMALISER_LATENCY + G.vector_words, seed=SEED)


class Ordered(Harness):
    """The drain of one tile, whose answers are always the next."""

    def __init__(self) -> None:
        block: Any = Drain(G)
        super().__init__(block, block.o.payload.shape(), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = self.base(self.block.tiles[0], self.block.o)
        m.d.comb += [self.block.order.valid.eq(1), self.block.order.payload.lanes.eq(G.lanes)]
        return m


def test_drain() -> None:
    rng = random.Random(SEED)
    most = 1 << (formats.OUTPUT_BITS - 1)
    words = [{"data": [rng.randrange(-most, most) for _ in range(G.word)]} for _ in range(30)]
    check(Ordered, lambda inputs: inputs, words, interval=1, seed=SEED)


# -- control -----------------------------------------------------------------------------------------------------------
class Placed(Harness):
    """APPEND's vectors, with a cursor that needs some cycles for each row; `o` has the data only or the jobs too."""

    def __init__(self, *, jobs: bool) -> None:
        block: Any = Ingest(G)
        self.out = block.o.payload if jobs else block.o.payload.data
        super().__init__(block, block.i.payload.shape(), self.out.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        wait = Signal(range(LOOK_UP + 1))
        m.d.comb += [
            block.i.valid.eq(self.i.valid),
            block.i.payload.eq(self.i.payload),
            self.i.ready.eq(block.i.ready),
            self.o.valid.eq(block.o.valid),
            self.o.payload.eq(self.out),
            block.o.ready.eq(self.o.ready),
            block.cursor_valid.eq(wait == 0),
        ]
        with m.If(block.cursor_step):
            m.d.sync += [wait.eq(LOOK_UP), block.cursor_row.eq(block.cursor_row + 1)]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        return m


def test_ingest() -> None:
    rng = random.Random(SEED)
    tokens = 4
    words = [rng.getrandbits(8 * G.link_bytes) for _ in range(tokens * 2 * G.vector_words)]
    due = []
    for number, word in enumerate(words):
        vector, index = divmod(number, G.vector_words)
        row, value = divmod(vector, 2)
        job = {"kind": Kind.VALUE if value else Kind.KEY, "row": row}
        due.append({"data": word, "first": int(index == 0), "job": job})
    # The look-up begins with the first of a token's 2 W words; its start and its end take a register each.
    cycles = len(words) - 1 + (tokens - 1) * max(0, LOOK_UP + 3 - 2 * G.vector_words)
    check(lambda: Placed(jobs=True), lambda _: due, words, interval=Fraction(cycles, len(words) - 1), seed=SEED)


class Jobs(Harness):
    """The jobs of the arbiter; a word of `i` is one of a vector or one of a result, which comes while none is quiet.

    Both destinations always have room, and the rotation gives a word in the cycle after it took one.
    """

    INPUTS = ("i", "results")

    def __init__(self) -> None:
        block: Any = Vectors(G)
        shapes = {name: getattr(block, name).payload.shape() for name in self.INPUTS}
        super().__init__(block, data.StructLayout({"to": range(len(shapes)), **shapes}), block.job.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        merge(m, self.i, {name: getattr(block, name) for name in self.INPUTS})
        entered, rotated = Signal(range(G.vector_words)), Signal(range(G.vector_words))
        m.d.comb += [
            block.i.payload.first.eq(entered == 0),
            block.quiet.eq(~block.results.valid),
            block.writer_space.eq(1),
            block.pack_space.eq(1),
            block.rotated_last.eq(rotated == G.vector_words - 1),
            self.o.valid.eq(block.job.valid),
            self.o.payload.eq(block.job.payload),
            block.job.ready.eq(self.o.ready),
        ]
        m.d.sync += block.rotated.eq(block.rotate_valid)
        with m.If(block.i.valid & block.i.ready):
            m.d.sync += entered.eq(entered + 1)
        with m.If(block.rotated):
            m.d.sync += rotated.eq(rotated + 1)
        return m


def test_vectors() -> None:
    rng = random.Random(SEED)
    words: list[Any] = []
    jobs = []
    results = rng.choices([False, True], k=20)
    for result in results:
        job = {"kind": rng.choice(list(Kind)), "row": rng.randrange(G.rows)}
        jobs += [] if result else [job]
        words += [{"to": 1} if result else {"to": 0, "i": {"job": job}}] * G.vector_words
    # A result waits for the last word of the vector before it, which passes the buffer in a cycle.
    cycles = len(words) - 1 + sum(b and not a for a, b in pairwise(results))
    check(Jobs, lambda _: jobs, words, interval=Fraction(cycles, len(words) - 1), seed=SEED)


class Rows(Harness):
    """The row reader; a word of `i` is a key row and a value row."""

    READ_LATENCY = 3

    def __init__(self) -> None:
        block: Any = RowReader(G, read_latency=self.READ_LATENCY)
        source = data.StructLayout({"key": G.row_bits, "value": G.row_bits})
        super().__init__(block, source, block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        held = Signal.like(self.i.payload)
        m.d.comb += [
            self.i.ready.eq(~block.busy),
            block.start.eq(self.i.valid & self.i.ready),
            block.count.eq(1),
            block.cursor_valid.eq(1),
            block.key.eq(held.key),
            block.value.eq(held.value),
            self.o.valid.eq(block.o.valid),
            self.o.payload.eq(block.o.payload),
            block.o.ready.eq(self.o.ready),
        ]
        with m.If(block.start):
            m.d.sync += held.eq(self.i.payload)
        return m


def test_row_reader() -> None:
    rng = random.Random(SEED)
    rows = [{"key": rng.getrandbits(G.row_bits), "value": rng.getrandbits(G.row_bits)} for _ in range(8)]
    raw = [row[name].to_bytes(G.row_bytes, "little") for row in rows for name in ("key", "value")]
    due = [word["data"] for row in raw for word in words_of(row, G.link_bytes)]
    words = 2 * G.row_bytes // G.link_bytes
    check(Rows, lambda _: due, rows, interval=2 + Rows.READ_LATENCY + words, seed=SEED)


class Started(Harness):
    """The pass queue's `start` or `order`; each ATTEND has sent one query, which arrives a cycle later."""

    def __init__(self, name: str) -> None:
        block: Any = PassQueue(G)
        self.name = name
        super().__init__(block, block.i.payload.shape(), getattr(block, name).payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = self.base(self.block.i, getattr(self.block, self.name))
        other = self.block.order if self.name == "start" else self.block.start
        m.d.comb += [self.block.i.payload.sent.eq(1), other.ready.eq(1)]
        m.d.sync += self.block.arrived.eq(self.i.valid & self.i.ready)
        return m


class Responses(Harness):
    """The responder; a word of `i` is a completed command, a word of its results or a word of its rows."""

    INPUTS: tuple[str, ...] = ("i", "vectors", "rows")

    def __init__(self, g: Geometry = G) -> None:
        if g.states:
            self.INPUTS = (*self.INPUTS, "outputs", "state")
        block: Any = Responder(g, info=Info(**dict.fromkeys(INFO_FIELDS, 5)))
        shapes = {name: getattr(block, name).payload.shape() for name in self.INPUTS}
        super().__init__(block, data.StructLayout({"to": range(len(shapes)), **shapes}), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        m.d.comb += [
            block.counter_word.eq(block.counter_index),
            self.o.valid.eq(block.o.valid),
            self.o.payload.eq(block.o.payload),
            block.o.ready.eq(self.o.ready),
        ]
        merge(m, self.i, {name: getattr(block, name) for name in self.INPUTS})
        return m


class Tokens(Harness):
    """The token buffer: slots and words in, tokens out, each accepted at once and released when taken."""

    def __init__(self) -> None:
        block: Any = TokenBuffer(STATES, slots=STATES.states)
        self.streams = {"head": block.head, "word": block.i}
        shapes = {name: port.payload.shape() for name, port in self.streams.items()}
        super().__init__(block, data.StructLayout({"to": range(len(shapes)), **shapes}), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        taken = Signal()
        m.d.sync += taken.eq(block.o.valid & block.o.ready)
        m.d.comb += [
            block.accept.eq(block.complete), block.release.eq(taken), self.o.valid.eq(block.o.valid),
            self.o.payload.eq(block.o.payload), block.o.ready.eq(self.o.ready),
        ]
        merge(m, self.i, self.streams)
        return m


def test_token_buffer() -> None:
    rng = random.Random(SEED)
    words, due = [], []
    bits = 8 * STATES.link_bytes
    for number in range(7):
        config = {"channels": 16 + 8 * (number % 3), "bonus": number % 2, "base": number}
        beta, decay = rng.randrange(1 << 16), rng.randrange(1, 1 << 24)
        words.append({"to": 0, "head": {"slot": number % STATES.states, "config": config}})
        words.append({"to": 1, "word": beta | decay << 32})
        vectors = (2 + number % 2) * STATES.vector_words + config["channels"] // STATES.word
        words += [{"to": 1, "word": rng.getrandbits(bits)} for _ in range(vectors)]
        due.append({"slot": number % STATES.states, "config": config, "bay": number % 4, "beta": beta, "decay": decay})
    check(Tokens, lambda _: due, words, interval=None, seed=SEED)  # a token beyond the bays waits for its place


class Outgoing(Harness):
    """Outputs as words; an output waits for the places of a head of the fewest channels."""

    CHANNELS = 16

    def __init__(self) -> None:
        block: Any = Outputs(STATES)
        super().__init__(block, signed(24), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        channel = Signal(range(self.CHANNELS))
        first = channel == 0
        m.d.comb += [
            block.channels.eq(self.CHANNELS), self.i.ready.eq(~first | block.allowed),
            block.valid.eq(self.i.valid & self.i.ready), block.value.eq(self.i.payload),
            block.begins.eq(block.valid & first), block.ends.eq(channel == self.CHANNELS - 1),
            self.o.valid.eq(block.o.valid), self.o.payload.eq(block.o.payload), block.o.ready.eq(self.o.ready),
        ]
        m.d.sync += channel.eq(channel + block.valid)
        return m


def test_recurrent_outputs() -> None:
    rng = random.Random(SEED)
    values = [rng.randint(-(1 << 23), (1 << 23) - 1) for _ in range(6 * Outgoing.CHANNELS)]
    per_word = STATES.link_bytes // 4
    due = []
    for at in range(0, len(values), per_word):
        word = sum((x & 0xFFFFFFFF) << 32 * i for i, x in enumerate(values[at:at + per_word]))
        due.append({"data": word, "last": int((at + per_word) % Outgoing.CHANNELS == 0)})
    check(Outgoing, lambda _: due, values, interval=1, seed=SEED)


class Saved(Harness):
    """STATE's words: a word of `i` asks for the state of a slot with a decay per lane, if it says so."""

    def __init__(self) -> None:
        block: Any = Snapshot(STATES, slots=1)
        super().__init__(block, 1, block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        lanes = Signal()
        m.d.comb += [
            self.i.ready.eq(~block.busy), block.save.eq(self.i.valid & self.i.ready),
            block.held.lane_decay.eq(lanes), block.current.noise.eq(NOISE), block.factors.factors.eq(FACTORS),
            self.o.valid.eq(block.o.valid), self.o.payload.eq(block.o.payload), block.o.ready.eq(self.o.ready),
        ]
        with m.If(block.save):
            m.d.sync += lanes.eq(self.i.payload)
        return m


def test_saved_states() -> None:
    rng = random.Random(SEED)
    asked = [rng.randrange(2) for _ in range(9)]
    due: list[int] = []
    begins = 0
    for lanes in asked:
        begins = 3 * len(due)
        factors = [sum((FACTORS >> 24 * i & 0xFFFFFF) << 32 * i for i in range(4))] * (2 * STATES.vector_words)
        flags = int(StateFlag.LANE_DECAY) * lanes
        due += [flags | NOISE << 96, 0, 0, 0, *(factors if lanes else [FACTORS & 0xFFFFFF])]
    check(Saved, lambda _: due, asked, interval=Fraction(begins + len(asked) - 1, len(asked) - 1), seed=SEED)


class Commands(Harness):
    """The command processor between a deframer that gives each header a verdict, and slots with room; fields of the
    header that matter to few commands say how its payload turned out."""

    def __init__(self, g: Geometry = G) -> None:
        block: Any = Command(g)
        super().__init__(block, block.header.payload.shape(), block.completion.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        held = Signal.like(self.i.payload)
        open_ = Signal()  # a header was taken, its verdict was not
        delay = Signal(2)
        m.d.comb += [
            block.header.valid.eq(self.i.valid & ~open_),
            block.header.payload.eq(Mux(open_, held.as_value(), self.i.payload.as_value())),
            self.i.ready.eq(block.header.ready & ~open_),
            block.verdict.valid.eq(open_ & (delay == 0)),
            block.verdict.payload.eq(held.sequence[0]),
            block.faulty.eq(held.shift),
            block.attend_sent.eq(held.first),
            block.settled.eq(1),
            block.idle.eq(1),
            block.slots_ready.eq(1),
            block.attend_ready.eq(1),
            block.read_entry.open.eq(1),
            block.read_entry.rows.eq(3),
            block.read_entry.pages.eq(1),
            self.o.valid.eq(block.completion.valid),
            self.o.payload.eq(block.completion.payload),
            block.completion.ready.eq(self.o.ready),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [open_.eq(1), held.eq(self.i.payload), delay.eq(2)]
        with m.Elif(delay != 0):
            m.d.sync += delay.eq(delay - 1)
        with m.Elif(block.verdict.valid & block.verdict.ready):
            m.d.sync += open_.eq(0)
        return m


def test_command() -> None:
    rng = random.Random(SEED)
    headers = [
        {"version": frame.VERSION, "opcode": int(Opcode.INFO), "sequence": rng.randrange(1 << 16)} for _ in range(20)
    ]
    due = []
    for header in headers:
        good = header["sequence"] % 2 == 0  # the harness's verdict
        response = {
            "opcode": header["opcode"] | frame.RESPONSE,
            "sequence": header["sequence"],
            "status": int(Status.OK if good else Status.BAD_FRAME),
            "blocks": 4 * len(INFO_FIELDS) // frame.BLOCK if good else 0,
        }
        due.append({"header": response, "answer": Answer.INFO if good else Answer.NOTHING, "lanes": 0})
    check(Commands, lambda _: due, headers, interval=COMMAND_CYCLES, seed=SEED)


@pytest.mark.parametrize("g", [G, STATES], ids=["plain", "states"])
def test_responder(g: Geometry) -> None:
    rng = random.Random(SEED)
    words: list[Any] = []
    due: list[Any] = []
    kinds = [answer for answer in Answer if g.states or answer not in (Answer.OUTPUTS, Answer.STATE)]
    of_blocks = {Answer.ROWS: (2, "rows"), Answer.OUTPUTS: (3, "outputs"), Answer.STATE: (4, "state")}
    answers = [*rng.sample(kinds * 3, 3 * len(kinds)), Answer.ROWS]
    for answer in answers:
        count = rng.randint(1, G.lanes)
        blocks = rng.randrange(100)
        if answer in of_blocks:
            blocks = count * 2 * g.row_bytes // frame.BLOCK
        fields = {"opcode": rng.randrange(256), "sequence": rng.randrange(1 << 16), "blocks": blocks}
        words.append({"to": 0, "i": {"header": fields, "answer": answer, "lanes": count}})
        body = frame.pack_header(frame.RESPONSE_HEADER, version=frame.VERSION, **fields)
        if answer is Answer.INFO:
            body += (5).to_bytes(4, "little") * len(INFO_FIELDS)
        elif answer is Answer.COUNTERS:
            indices = range(len(COUNTER_FIELDS) * COUNTER_BITS // 8 // G.link_bytes)
            body += b"".join(i.to_bytes(G.link_bytes, "little") for i in indices)
        elif answer in of_blocks:
            rows = [rng.getrandbits(128) for _ in range(blocks)]
            to, name = of_blocks[answer]
            words += [{"to": to, name: row} for row in rows]
            body += b"".join(row.to_bytes(G.link_bytes, "little") for row in rows)
        elif answer is Answer.VECTORS:
            exponents = [rng.randrange(4) for _ in range(count)]
            vectors = [rng.getrandbits(128) for _ in range(count * G.vector_words)]
            for index, word in enumerate(vectors):
                words.append({"to": 1, "vectors": {"data": word, "block": exponents[index // G.vector_words]}})
            body += b"".join(word.to_bytes(G.link_bytes, "little") for word in vectors) + frame.pad(bytes(exponents))
        due += words_of(body, G.link_bytes)
    # A word out in each cycle but in the two in which a command comes in behind the last row or output of another, in
    # the second of them behind a vector, as the block of exponents leaves in the first, in one behind a header without
    # more, and in three before each word of a table.
    rests = answers.count(Answer.NOTHING) + 2 * sum(answers.count(answer) for answer in of_blocks)
    rests += answers.count(Answer.VECTORS)
    for answer, size in ((Answer.INFO, 4 * len(INFO_FIELDS)), (Answer.COUNTERS, 8 * len(COUNTER_FIELDS))):
        rests += 3 * answers.count(answer) * size // G.link_bytes
    interval = Fraction(len(due) + rests - 1, len(words) - 1)
    check(lambda: Responses(g), lambda _: due, words, interval=interval, seed=SEED)


def test_pass_queue() -> None:
    rng = random.Random(SEED)
    words: list[Any] = [
        {"good": rng.randrange(4) != 0, "pass_": {"end": rng.randrange(1, G.rows), "lanes": rng.randint(1, G.lanes)}}
        for _ in range(30)
    ]
    passes = [word["pass_"] for word in words if word["good"]]
    # DEPTH ATTENDs wait: the last one comes in when the one before them has left the queue, which the first one does
    # a cycle after it came.
    cycles = INTERVAL * (len(words) - 1 - DEPTH) + 2
    interval = Fraction(cycles, len(words) - 1)
    check(lambda: Started("start"), lambda _: passes, words, interval=interval, seed=SEED)
    order = [{"lanes": p["lanes"]} for p in passes]
    check(lambda: Started("order"), lambda _: order, words, interval=interval, seed=SEED)


# -- the whole ---------------------------------------------------------------------------------------------------------
class Passes(Harness):
    """A tile; a word of `i` is a row, a query or a pass."""

    INPUTS = ("write", "query", "pass_")

    def __init__(self) -> None:
        block: Any = Tile(G)
        rows = stream.Signature(data.StructLayout({"value": 1, "row": range(G.rows), "data": G.row_bits}))
        queries = stream.Signature(
            data.StructLayout({n: m.shape for n, m in QueryLoad(G).members.items() if n != "valid"})
        )
        self.streams = {"write": rows.create(), "query": queries.create(), "pass_": block.pass_}
        shapes = {name: port.payload.shape() for name, port in self.streams.items()}
        super().__init__(block, data.StructLayout({"to": range(len(shapes)), **shapes}), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        merge(m, self.i, self.streams)
        rows, queries = self.streams["write"], self.streams["query"]
        m.d.comb += [
            rows.ready.eq(1),
            block.write.row.eq(rows.payload.row),
            block.write.data.eq(rows.payload.data),
            block.write.key_en.eq(rows.valid & ~rows.payload.value),
            block.write.value_en.eq(rows.valid & rows.payload.value),
            queries.ready.eq(block.query_ready),
            block.query.valid.eq((queries.valid & queries.ready) << queries.payload.lane),
            *(getattr(block.query, name).eq(queries.payload[name]) for name in queries.payload.shape().members),
            self.o.valid.eq(block.o.valid),
            self.o.payload.eq(block.o.payload),
            block.o.ready.eq(self.o.ready),
        ]
        return m


def test_tile() -> None:
    rng = torch.Generator().manual_seed(SEED)
    keys, values = (random_rows(G, [1] * G.rows, rng) for _ in range(2))
    words: list[Any] = [
        {"to": 0, "write": {"value": bank, "row": row, "data": data}}
        for bank, rows in enumerate((keys, values))
        for row, data in enumerate(row_words(rows, G))
    ]
    visible = torch.ones(G.lanes, G.rows, dtype=torch.bool)
    due = []
    for _ in range(4):
        q = random_queries(G, G.lanes, rng)
        for lane in range(G.lanes):
            scale = {"sign": int(q.sign[lane] < 0), "mantissa": int(q.mantissa[lane]) - 8}
            words.append({"to": 1, "query": {
                "lane": lane, "codes": q.codes[lane].tolist(), "exponent": int(q.exponent[lane]), **scale,
            }})  # fmt: skip
        limits = {"end": G.rows, "end_": [G.rows] * G.lanes, "active": (1 << G.lanes) - 1, "lanes": G.lanes}
        words.append({"to": 2, "pass_": {**limits, "shift": 12}})
        output = expected_pass(G, q, keys, values, visible, 12).output.flatten().tolist()
        due += [{"data": output[at : at + G.word]} for at in range(0, len(output), G.word)]
    check(Passes, lambda _: due, words, interval=None, seed=SEED)  # so few rows do not fill the pipeline


def exchanged(requests: list[Request], g: Geometry) -> tuple[list[Any], list[Any]]:
    """Link words of the requests, and those of the answers due."""
    golden = GoldenDevice(g)
    words, due = [], []
    for sequence, request in enumerate(requests):
        words += words_of(request.encode(sequence, g.link_bytes), g.link_bytes)
        answer = golden.answer(request)
        assert answer.payload is not None
        header = frame.pack_header(
            frame.RESPONSE_HEADER, version=frame.VERSION, opcode=request.opcode | frame.RESPONSE, sequence=sequence,
            status=int(answer.status), blocks=len(answer.payload) // frame.BLOCK, value=answer.value,
        )  # fmt: skip
        due += words_of(frame.seal(header + answer.payload, g.link_bytes), g.link_bytes)
    return words, due


def test_device() -> None:
    rng = np.random.default_rng(SEED)

    def vectors(count: int) -> Any:
        return rng.integers(-3000, 3000, (count, G.head_dim)).astype(np.int16)

    start, end = np.array([0, 1]), np.array([2, 3])
    requests = [
        Request(opcode=Opcode.OPEN),
        map_request(0, [0]),
        append_request(0, vectors(3), vectors(3)),
        attend_request(0, vectors(2), start, end, 20),
        attend_request(0, vectors(2), start, end + 1, 20),  # beyond the rows
        attend_request(0, vectors(1), start[:1], end[:1], 21),
        Request(opcode=Opcode.READ_ROWS, first=1, count=2),
        Request(opcode=Opcode.FREE),
    ]
    words, due = exchanged(requests, G)
    check(lambda: StateCell(G), lambda _: due, words, interval=None, seed=SEED)


def test_small_device() -> None:
    """Raw rows, whose commands take few cycles; its own tests have the others."""
    rows = pack(random_rows(SMALL, [1, 2, 1], torch.Generator().manual_seed(SEED)), SMALL)  # keys and values in turn
    requests = [
        Request(opcode=Opcode.OPEN),
        map_request(0, [0]),
        Request(opcode=Opcode.WRITE_ROWS, count=2, payload=rows),
        Request(opcode=Opcode.READ_ROWS, count=2),
        Request(opcode=Opcode.READ_ROWS, count=3),  # beyond the rows
    ]
    words, due = exchanged(requests, SMALL)
    check(lambda: SmallCell(SMALL), lambda _: due, words, interval=None, seed=SEED)


def test_serial_device() -> None:
    requests = [Request(opcode=Opcode.CONNECT, first=77), Request(opcode=Opcode.OPEN), map_request(0, [0])]
    wire: list[int] = []
    due: list[int] = []
    for sequence, (request, value) in enumerate(zip(requests, (77, 0, 1), strict=True)):
        wire += cobs.encode(strip(request.encode(sequence, NARROW.link_bytes), NARROW.link_bytes))
        header = frame.pack_header(
            frame.RESPONSE_HEADER, version=frame.VERSION, opcode=request.opcode | frame.RESPONSE, sequence=sequence,
            value=value,
        )  # fmt: skip
        due += cobs.encode(frame.seal(header, 4))
    check(lambda: SerialCell(NARROW, SerialLink()), lambda _: due, wire, interval=None, seed=SEED)


# -- proofs ------------------------------------------------------------------------------------------------------------
# `always` where every state of the block keeps the rules, also those out of reach. The command processor and the start
# of a pass count on what their neighbours do, and a job on two queues in step: they are proved from reset.
PROOFS: dict[str, dict[str, Any]] = {
    "stage": {"factory": Staged, "depth": 8, "transfer": lambda word: word, "always": True},
    "deframer header": {"factory": lambda: OneOf("header"), "depth": 9, "always": True},
    "deframer payload": {"factory": lambda: OneOf("payload"), "depth": 9, "always": True},
    "deframer verdict": {"factory": lambda: OneOf("verdict"), "depth": 9, "always": True},
    "framer": {"factory": lambda: Framer(G), "depth": 6, "always": True},
    "COBS decoder": {"factory": CobsDecoder, "depth": 8, "always": True},
    "COBS encoder": {"factory": CobsEncoder, "depth": 8},
    "intake": {"factory": lambda: Judged("o", NARROW), "depth": 20, "always": True},
    "intake repeat": {"factory": lambda: Judged("repeat", NARROW), "depth": 40, "always": True},
    "answers": {"factory": lambda: Asked(NARROW), "depth": 8},
    "block packer": {"factory": Credited, "depth": 12, "always": True},
    "normaliser": {"factory": Drained, "depth": 18, "always": True},
    "drain": {"factory": Ordered, "depth": 6, "transfer": lambda word: word, "always": True},
    "ingest": {"factory": lambda: Placed(jobs=True), "depth": 6, "always": True},
    "ingest data": {"factory": lambda: Placed(jobs=False), "depth": 9, "transfer": lambda word: word},
    "vectors": {"factory": Jobs, "depth": 12},
    "row reader": {"factory": Rows, "depth": 8, "always": True},
    "command": {"factory": Commands, "depth": 12, "reach": 1},
    "command of states": {"factory": lambda: Commands(STATES), "depth": 12, "reach": 1},
    "responder of states": {"factory": lambda: Responses(STATES), "depth": 10, "reach": 7, "always": True},
    "responder": {"factory": Responses, "depth": 10, "reach": 7, "always": True},  # a vector's response has 6 words
    "pass queue start": {"factory": lambda: Started("start"), "depth": 8},
    "pass queue order": {"factory": lambda: Started("order"), "depth": 10, "always": True},
    # The words of a tile are its normaliser's and those of a device its framer's, its output register's or its
    # encoder's, whatever all the rest does.
    "tile": {
        "factory": lambda: Tile(G), "source": "pass_", "keep": ["normalise"], "depth": 48, "always": True,
    },
    "token buffer": {"factory": Tokens, "depth": 18, "reach": 1},
    "recurrent passes": {
        "factory": lambda: Prepare(STATES, slots=1), "keep": [], "depth": 28, "reach": 1, "always": True,
    },
    "recurrent outputs": {"factory": Outgoing, "depth": 12, "always": True},
    "saved states": {"factory": Saved, "depth": 8, "always": True},
    "device with states": {"factory": lambda: StateCell(STATES), "keep": ["framer"], "depth": 6, "always": True},
    "device": {"factory": lambda: StateCell(G), "keep": ["framer"], "depth": 6, "always": True},
    "small device": {"factory": lambda: SmallCell(SMALL), "keep": [], "depth": 6, "always": True},
    "serial device": {"factory": lambda: SerialCell(NARROW, SerialLink()), "keep": ["encoder"], "depth": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", PROOFS)
def test_every_output_stream_is_proved(name: str) -> None:
    prove(**PROOFS[name])


def withdrawing(factory: Callable[[], Any]) -> Any:
    """A mutant of a block that withdraws a word after two cycles of waiting."""
    block = factory()
    build = block.elaborate

    def elaborate(platform: Any) -> Elaboratable:
        m: Module = build(platform)
        waited = Signal(2)
        with m.If(~block.o.valid | block.o.ready):
            m.d.sync += waited.eq(0)
        with m.Elif(waited != 2):
            m.d.sync += waited.eq(waited + 1)
        with m.If(waited == 2):
            m.d.comb += block.o.valid.eq(0)
        return m

    block.elaborate = elaborate
    return block


@pytest.mark.parametrize("name", PROOFS)
def test_no_mutant_is_proved(name: str) -> None:
    proof = {**PROOFS[name], "factory": lambda: withdrawing(PROOFS[name]["factory"])}
    with pytest.raises(ContractViolation, match="rule 2"):
        prove(**proof)
