"""Cycles of one layer's recurrent tokens on a device that stamps its words, which the simulator does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from statecell.bench.attention import BenchError, open_transport, stamps
from statecell.bench.random_states import head_modes, head_tokens
from statecell.device import Device, outputs, recur_request
from statecell.link.framing import Request
from statecell.model.recurrent import integer
from statecell.model.recurrent.families import FAMILIES, Family
from statecell.model.recurrent.host import Units
from statecell.model.recurrent.mode import Mode, RecurrentError, Scales, Storage
from statecell.model.recurrent.reference import Sequence
from statecell.model.recurrent.state import State, new_state
from statecell.spec.commands import Opcode
from statecell.spec.geometry import CONFIGS, Geometry

_PATIENCE = 1800.0
"""Seconds that a simulator may take for all tokens."""
_ALL = 1 << 40


@dataclass(frozen=True, kw_only=True)
class RecurrentBench:
    """One token of a layer of ``heads`` states of ``dk`` lanes x ``dv`` channels, written back at every ``interval``,
    on an array of ``lanes``, of which ``dk`` takes one row or two.

    ``cycles_per_token``: mean over tokens sent back to back, from the last word of one token's last output to that of a
    later one; with a log over whole intervals after the first, a commit of every head in each. ``row_cycles``: heads x
    dv x dk / lanes, what the rows of the states alone take in a token. ``reads_per_row``, ``writes_per_row``: rows read
    and written, those of the log included, of each row of the states and token, from the device's counters. ``equal``:
    every output was the integer model's, or else the bench fails.
    """

    family: str
    heads: int
    dk: int
    dv: int
    lanes: int
    state: str
    interval: int
    tokens: int
    cycles_per_token: float
    row_cycles: int
    reads_per_row: float
    writes_per_row: float
    equal: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def config_for(head_dim: int, heads: int) -> str:
    """The configuration that is measured: the one of that head_dim with the fewest states that are enough."""
    fits = [known for known in CONFIGS.values() if known.head_dim == head_dim and known.states >= heads]
    if not fits:
        known = ", ".join(f"{g.name} ({g.states} heads of {g.head_dim})" for g in CONFIGS.values() if g.states)
        raise BenchError(f"No configuration holds {heads} heads of {head_dim} lanes: there are {known}.")
    return min(fits, key=lambda known: known.states).name


def bench_recurrent(
    device_url: str, *, heads: int, dk: int, dv: int, family: str = "gdn", storage: Storage = Storage.INT4,
    interval: int = 1, tokens: int | None = None, seed: int = 1, progress: Callable[[int, int], None] | None = None,
) -> RecurrentBench:
    """Random tokens of ``family`` through ``heads`` states of a device, each output compared with the integer model.

    tokens: 4, or two intervals with a log, unless given. Raises BenchError for sizes that the device does not have, for
    one that stamps no cycles, and for an output that differs; RecurrentError for an unknown family; and the device's
    errors.
    """
    if family not in FAMILIES:
        raise RecurrentError(f"there is no family {family!r}; choose one of {', '.join(FAMILIES)}")
    tokens = tokens or max(4, 2 * interval)
    if tokens % interval or tokens < 2 * interval:
        raise BenchError(
            f"The tokens are {tokens}: give at least 2, the first fills the pipeline." if interval == 1 else
            f"The tokens are {tokens}: give a multiple of the {interval} from one write-back to the next, and two at "
            "least.")
    transport = open_transport(device_url)
    # all tokens in one exchange: nothing pauses between them
    with Device(transport, timeout=_PATIENCE, batch_bytes=_ALL) as device:
        g = device.geometry
        _check(g, heads, dk, dv)
        kind = FAMILIES[family]
        sequence = _sequence(kind, tokens, heads, dk, dv, seed)
        units = Units.fit(sequence, kind.rule, torch.full((heads,), 4.0, dtype=torch.float64))
        lanes = sequence.decay.shape[-1] > 1
        if dk > g.head_dim and (lanes or interval > 1):
            raise BenchError(f"Keys of {dk} lanes take two rows of this device, which writes them back at every token "
                             "with one decay a head: leave out --interval and take a family other than gla or rwkv.")
        if lanes and interval > 1:
            raise BenchError(f"The family {family} has a decay per lane; the device writes such states back at each "
                             "token: leave out --interval.")
        mode = Mode(storage=storage, scales=Scales.HELD, rotate=not lanes, interval=interval)
        halves = dk // g.head_dim
        state = new_state([mode] * heads, kind.rule, g, channels=dv, halves=halves, lane_decay=lanes, shift=units.shift)
        bonus = family == "rwkv"
        device.reset()
        for head, opening in enumerate(head_modes(state, range(heads), bonus=bonus)):
            device.open_state(head, opening)
        requests, expected = _tokens(state, units, sequence, bonus, progress)
        device.counters(clear=True)
        answers = device.require(requests)
        of_tokens = [number for number, request in enumerate(requests) if request.opcode == Opcode.RECUR]
        times = stamps(transport).out_stamps[of_tokens]
        counted = device.counters()
    for number, (at, o) in enumerate(zip(of_tokens, expected, strict=True)):
        if outputs(answers[at]).tolist() != o:
            raise BenchError(f"Output {number // heads} of head {number % heads} differs from the integer model.")
    ends = times[heads - 1::heads].astype(np.int64)
    rows = tokens * heads * dv * halves * mode.planes
    return RecurrentBench(
        family=family, heads=heads, dk=dk, dv=dv, lanes=g.head_dim, state=storage.value,
        interval=interval, tokens=tokens,
        cycles_per_token=float(ends[-1] - ends[interval - 1]) / (tokens - interval), row_cycles=heads * dv * halves,
        reads_per_row=(counted.key_rows + counted.value_rows) / rows,
        writes_per_row=counted.rows_written / rows, equal=True,
    )


def _check(g: Geometry, heads: int, dk: int, dv: int) -> None:
    if not 1 <= heads <= g.states:
        raise BenchError(f"The heads are {heads}: give 1 to {g.states} for this device, whose states those are.")
    if dk not in (g.head_dim, 2 * g.head_dim):
        raise BenchError(f"The device has {g.head_dim} lanes, not {dk} or half of them: give that --dk or another "
                         "--device.")
    if dv % 8 or not 16 <= dv <= 2 * g.head_dim:
        raise BenchError(f"The channels are {dv}: give a multiple of 8 from 16 to {2 * g.head_dim}.")


def _sequence(family: type[Family], tokens: int, heads: int, dk: int, dv: int, seed: int) -> Sequence:
    """Random tokens of a family: unit keys, decays near 1, write strengths below 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(tokens, heads, dk), dim=-1) for _ in range(2))
    v = normal(tokens, heads, dv)
    gate, strength = torch.sigmoid(normal(tokens, heads) + 3), torch.sigmoid(normal(tokens, heads))
    lanes = torch.sigmoid(normal(tokens, heads, dk) + 3)
    make: Any = family
    arguments = {
        "LinearAttention": (q.abs(), k.abs(), v[..., :-1]), "RetNet": (q, k, v, gate[0]),
        "GatedLinearAttention": (q, k, v, lanes), "Mamba2": (q, k, v, strength, -gate[0]),
        "Rwkv": (q, k, v, lanes, normal(heads, dk)), "DeltaNet": (q, k, v, strength),
        "GatedDeltaNet": (q, k, v, gate, strength),
    }
    tokens_of: Sequence = make.tokens(*arguments[family.__name__])
    return tokens_of


def _tokens(
    state: State, units: Units, sequence: Sequence, bonus: bool, progress: Callable[[int, int], None] | None
) -> tuple[list[Request], list[list[int]]]:
    """Requests of all tokens, head after head, with a commit of every log that is full, and the model's outputs."""
    requests: list[Request] = []
    expected: list[list[int]] = []
    count = sequence.q.shape[0]
    for t in range(count):
        token = units.token(Sequence(*(x[t] for x in vars(sequence).values())))
        requests += [recur_request(head, one) for head, one in enumerate(head_tokens(state, token, bonus=bonus))]
        expected += integer.step(state, token).tolist()
        due = integer.due(state)
        if bool(due.any()):
            requests += [Request(opcode=Opcode.COMMIT, slot=head) for head in range(state.heads) if due[head]]
            integer.commit(state, due)
        if progress is not None:
            progress(t + 1, count)
    return requests, expected
