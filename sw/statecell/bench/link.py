"""What a serial link costs and what it survives: bytes on the wire, commands a second, and commands under faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from statecell.bench.attention import BenchError
from statecell.device import Device, DeviceError, append_request, attend_request, attention, map_request
from statecell.link.framing import Request, Response
from statecell.link.serial import LinkCounts
from statecell.model.rows import pack
from statecell.runtime.engine import Append, Attend
from statecell.runtime.model_engine import ModelEngine
from statecell.spec import formats
from statecell.spec.commands import Opcode, Status

TIMEOUT_S = 120.0
_MEASURED = 8
"""Commands of a kind in one measurement."""
_SLOTS = 2
_BATCH = 12
"""Commands of one exchange under faults."""
_SHIFT = 26
_WIRE_BITS = 10
"""Bits of a byte on the wire: start, eight, stop."""


class _Counting(Protocol):
    """A transport that counts what goes over the wire."""

    counts: LinkCounts
    baud: int


@dataclass(frozen=True, kw_only=True)
class LinkBench:
    """A link without faults of its own making.

    `payload_share`: bytes of query and output vectors among all bytes of an ATTEND and its answer, both directions.
    `attend_bytes`, `append_bytes`: an ATTEND of all lanes, an APPEND of one token, with their answers. A token and
    layer takes `kv_heads` of both: `token_layer_bytes`, and `token_layer_wire_ms` on the wire at `baud`, where answers
    go beside later requests. `commands_per_s`: ATTENDs, back to back, wall clock.
    """

    device: str
    baud: int
    head_dim: int
    queries: int
    kv_heads: int
    payload_share: float
    attend_bytes: int
    append_bytes: int
    token_layer_bytes: int
    token_layer_wire_ms: float
    commands_per_s: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class FaultBench:
    """Random commands on a disturbed link, each answer held against the integer model.

    `fault_rate`, `outage_rate`: probability of a fault, and of the cable's going out, for each byte. `wrong`: answers
    that differ in status, value or a bit of a vector, and slots whose rows differ at the end; an APPEND that is lost or
    carried out twice is one of them. `retries`: requests sent again; `damaged`, `timeouts` and `reconnects` as
    LinkCounts counts them.
    """

    fault_rate: float
    outage_rate: float
    commands: int
    wrong: int
    retries: int
    damaged: int
    timeouts: int
    reconnects: int
    baud: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def bench_link(url: str, *, kv_heads: int = 3, seed: int = 1) -> LinkBench:
    """Measure the link at `url`. Raises BenchError where it counts no bytes, and the device's errors."""
    with Device.open(url, timeout=TIMEOUT_S) as device:
        link, g = _counting(device), device.geometry
        talk = _Talk(device, seed)
        q = talk.vectors(g.lanes)
        attend = attend_request(0, q, np.zeros(g.lanes, int), np.ones(g.lanes, int), _SHIFT)
        device.require([talk.append_of(0, 1)])
        append_out, append_in, _ = _spent(device, link, [talk.append_of(0, 1) for _ in range(_MEASURED)])
        attend_out, attend_in, seconds = _spent(device, link, [attend] * _MEASURED)
        vectors = 2 * g.lanes * g.head_dim * formats.VECTOR_BITS // 8
        out_bytes = kv_heads * (append_out + attend_out)
        return LinkBench(
            device=url, baud=link.baud, head_dim=g.head_dim, queries=g.lanes, kv_heads=kv_heads,
            payload_share=vectors / (attend_out + attend_in),
            attend_bytes=attend_out + attend_in, append_bytes=append_out + append_in,
            token_layer_bytes=out_bytes + kv_heads * (append_in + attend_in),
            token_layer_wire_ms=1e3 * _WIRE_BITS * (out_bytes + attend_in) / link.baud,
            commands_per_s=_MEASURED / seconds,
        )


def bench_faults(
    url: str,
    *,
    fault_rate: float,
    outage_rate: float = 0.0,
    commands: int = 10_000,
    seed: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> FaultBench:
    """Random commands on the device at `url`, whose link is disturbed as its address says; the two rates are reported.

    Raises BenchError where the link counts no bytes, and the device's errors: LinkTimeout where faults win.
    """
    with Device.open(url, timeout=TIMEOUT_S) as device:
        link, talk = _counting(device), _Talk(device, seed)
        before, start, done = link.counts.as_dict(), time.monotonic(), 0
        while done < commands:
            done += talk.batch(min(_BATCH, commands - done))
            if progress is not None:
                progress(done, commands)
        wrong = talk.wrong + talk.wrong_slots()
        spent = {name: value - before[name] for name, value in link.counts.as_dict().items()}
        return FaultBench(
            fault_rate=fault_rate, outage_rate=outage_rate, commands=done, wrong=wrong,
            retries=spent["repeats"], damaged=spent["damaged"], timeouts=spent["timeouts"],
            reconnects=spent["reconnects"], baud=link.baud, seconds=time.monotonic() - start,
        )


class _Talk:
    """Random commands on two slots of a device, and the integer model that goes along."""

    def __init__(self, device: Device, seed: int) -> None:
        self._device = device
        self._random = np.random.default_rng(seed)
        g = device.geometry
        self._model = ModelEngine(g)
        self._slots = self._model.open_slots(_SLOTS)
        pages = min(g.pages_per_slot, g.pages // _SLOTS, 8)
        self._room = pages * g.page_rows
        device.reset()
        device.require([Request(opcode=Opcode.OPEN, slot=slot) for slot in self._slots])
        device.require([
            map_request(slot, range(n * pages, (n + 1) * pages)) for n, slot in enumerate(self._slots)
        ])
        self.wrong = 0

    def vectors(self, count: int) -> NDArray[np.int16]:
        """Random vectors, as large as a model's."""
        d = self._device.geometry.head_dim
        return (self._random.standard_normal((count, d)) * 6000).clip(-32767, 32767).astype(np.int16)

    def append_of(self, slot: int, tokens: int) -> Request:
        """An APPEND, done by the model at once."""
        k, v = self.vectors(tokens), self.vectors(tokens)
        self._model.run([Append(slot=slot, k=k, v=v)])
        return append_request(slot, k, v)

    def batch(self, count: int) -> int:
        """`count` commands in one exchange; returns how many."""
        requests: list[Request] = []
        checks: list[Callable[[Response], bool]] = []
        for _ in range(count):
            request, check = self._command(int(self._random.choice(self._slots)))
            requests.append(request)
            checks.append(check)
        answers = self._device.submit(requests)
        self.wrong += sum(
            answer.status is not Status.OK or not check(answer) for answer, check in zip(answers, checks, strict=True)
        )
        return count

    def wrong_slots(self) -> int:
        """Slots that hold other rows than the model's."""
        wrong = 0
        for slot in self._slots:
            rows = self._model.length(slot)
            if rows:
                due = tuple(pack(bank, self._device.geometry) for bank in self._model.rows(slot))
                try:
                    wrong += self._device.read_rows(slot, 0, rows) != due
                except DeviceError:  # not so many rows
                    wrong += 1
        return wrong

    def _command(self, slot: int) -> tuple[Request, Callable[[Response], bool]]:
        held = self._model.length(slot)
        if held and self._random.random() < 0.5:
            return self._attend(slot, held)
        if held + 2 > self._room:
            kept = held // 2
            self._model.truncate(slot, kept)
            return Request(opcode=Opcode.TRUNCATE, slot=slot, count=kept), lambda answer: answer.value == kept
        request = self.append_of(slot, int(self._random.integers(1, 3)))
        return request, lambda answer: answer.value == held + request.count

    def _attend(self, slot: int, held: int) -> tuple[Request, Callable[[Response], bool]]:
        g = self._device.geometry
        lanes = int(self._random.integers(1, g.lanes + 1))
        q = self.vectors(lanes)
        start = self._random.integers(0, held, lanes)
        end = self._random.integers(start + 1, held + 1)
        due = self._model.run([Attend(slot=slot, q=q, start=start, end=end, shift=_SHIFT)])[0]
        offset = formats.output_exponent(0, g.head_dim)

        def same(answer: Response) -> bool:
            if due is None:
                return False
            got = attention(answer, lanes, g.head_dim)
            return bool(np.array_equal(got.out, due.out) and np.array_equal(got.block + offset, due.exponent))

        return attend_request(slot, q, start, end, formats.score_shift(_SHIFT, g.head_dim)), same


def _spent(device: Device, link: _Counting, requests: Sequence[Request]) -> tuple[int, int, float]:
    """Bytes out and in of one request, in the mean, and seconds of all."""
    before = (link.counts.bytes_out, link.counts.bytes_in)
    start = time.monotonic()
    device.require(requests)
    seconds = time.monotonic() - start
    out, back = link.counts.bytes_out - before[0], link.counts.bytes_in - before[1]
    return round(out / len(requests)), round(back / len(requests)), seconds


def _counting(device: Device) -> _Counting:
    transport = device.transport
    if not isinstance(getattr(transport, "counts", None), LinkCounts):
        raise BenchError(
            "This device is not on a serial link: give --device serial:///dev/ttyUSB0, or board:CONFIG to simulate one."
        )
    return cast(_Counting, transport)
