"""Every block with an output stream keeps the shared stream contract; the contract's own mutants are in tests/sim.

Tile and device give words through Normalise and Framer; their benches in tests/sim/benches check them whole. Blocks
with a CRC, a deep queue or a multiplier are checked with random stalls only: the solver needs minutes for those.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
import torch
from amaranth.hdl import Elaboratable, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.link import cobs
from statecell.model.normalise import normalise, pack_block
from statecell.spec import formats, frame
from statecell.spec.commands import INFO_FIELDS, Info, Opcode, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.attention.normalise import Normalise
from statecell_hw.attention.pack import BlockPack
from statecell_hw.control.command import Command
from statecell_hw.control.drain import Drain
from statecell_hw.control.ingest import Ingest
from statecell_hw.control.passes import PassQueue
from statecell_hw.control.rawrows import RowReader
from statecell_hw.control.responder import DEPTH, Answer, Responder
from statecell_hw.link.answers import Answers
from statecell_hw.link.cobs import CobsDecoder, CobsEncoder
from statecell_hw.link.deframer import Deframer
from statecell_hw.link.framer import Framer
from statecell_hw.link.intake import Intake
from statecell_hw.stage import Stage
from statecell_sim.contract import check
from statecell_sim.formal import prove
from tests.hw.array.vectors import pack_words, signed_words
from tests.hw.streams import words_of

SEED = 31
G = Geometry(
    name="least", head_dim=32, rows=8, lanes=2, slots=1, pages_per_slot=1, page_rows=8, link_bytes=16, query_bits=8
)  # fmt: skip
NORMALISER_LATENCY = 13
COMMAND_CYCLES = 8  # look-up, checks, the harness's verdict after three cycles, completion
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


class Staged(Harness):
    """A register in a stream."""

    def __init__(self) -> None:
        super().__init__(Stage(8), unsigned(8), unsigned(8))

    def elaborate(self, platform: Any) -> Elaboratable:
        return self.base(self.block.i, self.block.o)


def test_stage() -> None:
    words = list(range(40))
    check(Staged, lambda _: words, words, interval=1, seed=SEED)
    prove(Staged, 8)


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
    if name != "verdict":  # two CRCs of free words are beyond the solver
        prove(lambda: OneOf(name), 9)


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
    prove(CobsDecoder, 8)


def test_cobs_encoder() -> None:
    frames = stuffed(random.Random(SEED))
    wire = list(b"".join(cobs.encode(data) for data in frames))
    words = frame_bytes(frames)
    # A cycle for each byte in, each byte out, and each block; the last frame's two blocks leave after its last byte.
    blocks = sum(len(cobs.encode(data)) - 1 - sum(byte != 0 for byte in data) for data in frames)
    cycles = len(words) + len(wire) + blocks - 1 - (len(cobs.encode(frames[-1])) + 2)
    check(CobsEncoder, lambda _: wire, words, interval=Fraction(cycles, len(words) - 1), seed=SEED)


class Judged(Harness):
    """The intake with a session that runs; the device's verdict comes a cycle after a frame."""

    def __init__(self) -> None:
        block: Any = Intake(G, SerialLink())
        super().__init__(block, block.i.payload.shape(), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = self.base(self.block.i, self.block.o)
        block = self.block
        ended = Signal()
        begun = Signal()
        m.d.sync += ended.eq(block.o.valid & block.o.ready & block.o.payload.last)
        m.d.comb += [block.accepted.eq(ended), block.connect.eq(ended & ~begun), block.token.eq(1)]
        m.d.sync += begun.eq(begun | ended)
        return m


def test_intake() -> None:
    rng = random.Random(SEED)
    opcodes = [Opcode.CONNECT, Opcode.APPEND, Opcode.APPEND, Opcode.OPEN]
    frames = []
    for sequence, opcode in enumerate(opcodes):
        blocks = rng.randrange(4)
        fields = {"version": frame.VERSION, "opcode": opcode, "sequence": sequence, "blocks": blocks}
        body = frame.pack_header(frame.REQUEST_HEADER, **fields) + rng.randbytes(16 * blocks)
        frames.append(frame.seal(body, 4))  # on the wire the CRC is not filled up
    due = [word for data in frames for word in words_of(frame.pad(data), G.link_bytes)]
    words = frame_bytes(frames)
    # A byte a cycle, one more for each word; a frame's head is judged and passed on, and the verdict comes.
    cycles = sum(len(data) + -(-len(data) // G.link_bytes) + 1 + 4 + 1 for data in frames) - 1 - (1 + 1)
    check(Judged, lambda _: due, words, interval=Fraction(cycles, len(words) - 1), seed=SEED)


class Asked(Harness):
    """Answers that nobody asks for again."""

    def __init__(self) -> None:
        block: Any = Answers(G, SerialLink(answer_bytes=256))
        super().__init__(block, block.i.payload.shape(), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        return self.base(self.block.i, self.block.o)


def test_answers() -> None:
    rng = random.Random(SEED)
    bodies = [rng.randbytes(16 * blocks) for blocks in (1, 5, 1, 3)]
    words = [word for body in bodies for word in words_of(frame.seal(body, G.link_bytes), G.link_bytes)]
    due = frame_bytes([body + frame.seal(body, 4)[-4:] for body in bodies])
    # Each byte is stored and sent, an answer begins with a cycle of rest; the last one is only stored.
    cycles = sum(1 + 2 * (len(body) + 4) for body in bodies) - (len(bodies[-1]) + 4) - 1 - G.link_bytes
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
    prove(Ordered, 6, transfer=lambda word: word)


# -- control -----------------------------------------------------------------------------------------------------------
class Placed(Harness):
    """The data of APPEND's vectors, with a cursor that needs some cycles for each row."""

    def __init__(self) -> None:
        block: Any = Ingest(G)
        super().__init__(block, block.i.payload.shape(), block.o.payload.data.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.block = block = self.block
        wait = Signal(range(LOOK_UP + 1))
        m.d.comb += [
            block.i.valid.eq(self.i.valid),
            block.i.payload.eq(self.i.payload),
            self.i.ready.eq(block.i.ready),
            self.o.valid.eq(block.o.valid),
            self.o.payload.eq(block.o.payload.data),
            block.o.ready.eq(self.o.ready),
            block.cursor_valid.eq(wait == 0),
        ]
        with m.If(block.cursor_step):
            m.d.sync += wait.eq(LOOK_UP)
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        return m


def test_ingest() -> None:
    rng = random.Random(SEED)
    words = [rng.getrandbits(8 * G.link_bytes) for _ in range(4 * 2 * G.vector_words)]
    # The row is left with its value vector's first word: W - 1 words pass during the cursor's look-up.
    cycles = len(words) - 1 + (4 - 1) * max(0, LOOK_UP - (G.vector_words - 1))
    check(Placed, lambda inputs: inputs, words, interval=Fraction(cycles, len(words) - 1), seed=SEED)
    prove(Placed, 9, transfer=lambda word: word)


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
    prove(Rows, 8)


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
    """The responder, with commands that need no results."""

    def __init__(self) -> None:
        block: Any = Responder(G, info=Info(**dict.fromkeys(INFO_FIELDS, 5)))
        super().__init__(block, block.i.payload.shape(), block.o.payload.shape())

    def elaborate(self, platform: Any) -> Elaboratable:
        return self.base(self.block.i, self.block.o)


class Commands(Harness):
    """The command processor between a deframer that gives each header a verdict, and slots with room."""

    def __init__(self) -> None:
        block: Any = Command(G)
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


def test_responder() -> None:
    rng = random.Random(SEED)
    completions, due = [], []
    for number in range(DEPTH):  # so many as the queue takes without a stall
        answer = Answer.INFO if number % 3 == 1 else Answer.NOTHING
        header = {"opcode": rng.randrange(256), "sequence": rng.randrange(1 << 16), "value": rng.getrandbits(32)}
        completions.append({"header": header, "answer": answer, "lanes": 0})
        body = frame.pack_header(frame.RESPONSE_HEADER, version=frame.VERSION, **header)
        if answer is Answer.INFO:
            body += (5).to_bytes(4, "little") * len(INFO_FIELDS)
        due += words_of(body, G.link_bytes)
    check(Responses, lambda _: due, completions, interval=1, seed=SEED)


@pytest.mark.parametrize("name", ["start", "order"])
def test_pass_queue(name: str) -> None:
    prove(lambda: Started(name), 8)
