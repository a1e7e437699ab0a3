"""Cycles of one attention command on a device that stamps its words, which the simulator does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from statecell.device import Device, append_request, attend_request, map_request
from statecell.errors import StatecellError
from statecell.link.address import TRANSPORTS
from statecell.link.framing import Request
from statecell.link.transport import Transport
from statecell.spec.commands import Opcode
from statecell.spec.formats import score_shift
from statecell.spec.geometry import CONFIGS, Geometry

_BURST = 9
"""Commands back to back; the interval is the mean over the last eight."""
_APPEND_TOKENS = 64
TIMEOUT_S = 30.0


class BenchError(StatecellError):
    """The device cannot be measured, or has no room for what is asked."""


class Stamps(Protocol):
    """Cycle stamps of the newest exchange: when the last word of each request and of each response moved."""

    in_stamps: NDArray[np.uint64]
    out_stamps: NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class AttentionBench:
    """`queries` query vectors over `rows` rows in one command.

    `latency_cycles`: from the last command word taken to the last response word given, rotation and normalisation
    included, on an idle device: an attention command right after an APPEND's response takes longer, and is not what is
    measured here. `interval_cycles`: between the responses of independent commands sent back to back.
    `lane_busy`: rows / interval, the share of cycles in which the dot lanes take a row.
    """

    head_dim: int
    rows: int
    queries: int
    latency_cycles: int
    interval_cycles: float
    lane_busy: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def config_for(head_dim: int) -> str:
    """The configuration that is measured for a head_dim: the one with the most rows. Raises BenchError."""
    fits = [known for known in CONFIGS.values() if known.head_dim == head_dim and known.tiles == 1
            and not known.states]
    if not fits:
        raise BenchError(f"No configuration has head_dim {head_dim}: use one of {_head_dims()}.")
    return max(fits, key=lambda known: (known.slot_rows, known.rows)).name


def _head_dims() -> str:
    return ", ".join(str(dim) for dim in sorted({known.head_dim for known in CONFIGS.values()}))


def bench_attention(
    device_url: str,
    *,
    rows: Sequence[int] = (64, 256, 1024),
    queries: Sequence[int] = (1, 3),
    seed: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[AttentionBench]:
    """Measure every pair of `rows` and `queries` with random vectors drawn from `seed`.

    Raises BenchError where the device stamps no cycles or a number is beyond its geometry, and the device's errors.
    """
    results: list[AttentionBench] = []
    transport = open_transport(device_url)
    with Device(transport) as device:
        geometry = device.geometry
        _check(geometry, rows, queries)
        random = np.random.default_rng(seed)
        total = len(rows) * len(queries)
        for count in rows:
            device.reset()
            _fill(device, count, random)
            for lanes in queries:
                results.append(_measure(device, transport, count, lanes, random))
                if progress is not None:
                    progress(len(results), total)
    return results


def _check(geometry: Geometry, rows: Sequence[int], queries: Sequence[int]) -> None:
    most = min(geometry.rows, geometry.slot_rows)
    if not rows or min(rows) < 1 or max(rows) > most:
        raise BenchError(f"The rows are {_join(rows)}: give 1 to {most} for this device.")
    if not queries or min(queries) < 1 or max(queries) > geometry.lanes:
        raise BenchError(f"The queries are {_join(queries)}: give 1 to {geometry.lanes} for this device.")


def _join(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "none"


def _fill(device: Device, count: int, random: np.random.Generator) -> None:
    """Slot 0 with `count` random rows."""
    d = device.geometry.head_dim
    requests = [Request(opcode=Opcode.OPEN), map_request(0, range(-(-count // device.geometry.page_rows)))]
    for start in range(0, count, _APPEND_TOKENS):
        size = (min(_APPEND_TOKENS, count - start), d)
        requests.append(append_request(0, _vectors(random, size), _vectors(random, size)))
    device.require(requests)


def _vectors(random: np.random.Generator, size: tuple[int, int]) -> NDArray[np.int16]:
    return (random.standard_normal(size) * 6000).clip(-32767, 32767).astype(np.int16)


def _measure(
    device: Device, transport: Transport, count: int, lanes: int, random: np.random.Generator
) -> AttentionBench:
    d = device.geometry.head_dim
    start, end = np.zeros(lanes, np.int64), np.full(lanes, count)
    # A spread of some octaves between the scores, as in a model: the running maximum climbs as it would there.
    shift = score_shift(27, d)
    requests = [attend_request(0, _vectors(random, (lanes, d)), start, end, shift) for _ in range(_BURST)]
    # The first command after the fill is not measured: it takes some hundred cycles more than every later one.
    device.require(requests[:1])
    device.require(requests[:1])
    alone = stamps(transport)
    device.require(requests)
    burst = stamps(transport)
    interval = float(burst.out_stamps[-1] - burst.out_stamps[0]) / (_BURST - 1)
    return AttentionBench(
        head_dim=d,
        rows=count,
        queries=lanes,
        latency_cycles=int(alone.out_stamps[0] - alone.in_stamps[0]),
        interval_cycles=interval,
        lane_busy=count / interval,
    )


def open_transport(url: str) -> Transport:
    """The transport of a device's URL. Raises BenchError for a scheme that nothing installed opens."""
    scheme, _, rest = url.partition(":")
    found = [point for point in entry_points(group=TRANSPORTS) if point.name == scheme]
    if not found:
        raise BenchError(f"No installed package opens {url!r}: measure the simulator, --device sim:CONFIG.")
    transport: Transport = found[0].load()(rest, timeout=TIMEOUT_S)
    return transport


def stamps(transport: Transport) -> Stamps:
    """The stamps of the newest exchange. Raises BenchError for a device that has none."""
    newest = getattr(transport, "last", None)
    if newest is None or not hasattr(newest, "out_stamps"):
        raise BenchError("This device does not count cycles for each word: measure the simulator, --device sim:CONFIG.")
    return cast(Stamps, newest)
