"""Random recurrent tokens of every family in every mode on a device, each output compared with the integer model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from statecell.bench.attention import BenchError, open_transport
from statecell.bench.random_states import (
    every_mode,
    head_mode,
    head_modes,
    head_tokens,
    random_heads,
    random_scales,
    random_token,
)
from statecell.device import Device, outputs, recur_request
from statecell.link.framing import Request
from statecell.model.recurrent import factor, integer
from statecell.model.recurrent.families import FAMILIES
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rule, Scales
from statecell.model.recurrent.state import ONE_DECAY, State
from statecell.model.rows import pack
from statecell.spec import formats
from statecell.spec.commands import Opcode

_ROUND = 40
_SEQUENCE = 200
_SEQUENCES = 10
"""That the model takes in step."""
_INTERVALS = (2, 3, 5, 8, 12, 16)
_ONE_BETA = 1 << formats.BETA_FRACTION
_ONE_KEY = 1 << formats.KEY_FRACTION
_LIMIT = (1 << formats.RECUR_BITS - 1) - 1


class DifferenceError(BenchError):
    """A device answered or holds what the integer model does not."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a family's tokens have: a decay per lane or one a head, any or always 1, new at each token or ``fixed`` for
    a sequence; any write strength or always 1; b of its own; a last channel of value 1.
    """

    rule: Rule
    lanes: bool = False
    decays: bool = True
    fixed: bool = False
    strength: bool = False
    bonus: bool = False
    normaliser: bool = False


_DELTA = FAMILIES["gdn"].rule
KINDS = {
    "linear": Kind(rule=FAMILIES["linear"].rule, decays=False, normaliser=True),
    "retnet": Kind(rule=FAMILIES["retnet"].rule, fixed=True),
    "gla": Kind(rule=FAMILIES["gla"].rule, lanes=True),
    "mamba2": Kind(rule=FAMILIES["mamba2"].rule, strength=True),
    "rwkv": Kind(rule=FAMILIES["rwkv"].rule, lanes=True, bonus=True),
    "deltanet": Kind(rule=FAMILIES["deltanet"].rule, decays=False, strength=True),
    "gdn": Kind(rule=_DELTA, strength=True),
    "kda": Kind(rule=_DELTA, lanes=True, strength=True),
}
"""The families; kda is Gated DeltaNet with a decay per lane."""


@dataclass(frozen=True, kw_only=True)
class RandomSteps:
    """``steps`` tokens of a family in each of ``modes`` (storage, scales, rounding), written back at every token or
    from a log, with keys of the device's lanes or of two ``halves`` of so many each: ``outputs`` numbers, of which the
    share ``at_limit`` was the largest or least that there is; ``different`` is 0, or else there is a DifferenceError.
    """

    family: str
    write_back: str
    halves: int
    modes: tuple[str, ...]
    steps: int
    outputs: int
    at_limit: float
    different: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def bench_steps(device_url: str, *, steps: int, families: Sequence[str] = tuple(KINDS), seed: int = 1,
                progress: Callable[[int, int], None] | None = None) -> list[RandomSteps]:
    """``steps`` random tokens in every mode of each family: at once, and where there is one decay a head from a log
    and with keys of two halves.

    Heads of all modes take them side by side, so that their rows follow each other. Rotation, shift, error feedback,
    noise and the log's interval are drawn anew for sequences of 200 tokens. Raises DifferenceError at the first output,
    register or row that is not the model's, BenchError for an unknown family or a device with too few states.
    """
    if unknown := [name for name in families if name not in KINDS]:
        raise BenchError(f"There is no family {unknown[0]!r}: give some of {', '.join(KINDS)}.")
    if steps < 1:
        raise BenchError(f"The steps are {steps}: give at least 1.")
    passes = [(name, logs, halves) for name, (logs, halves) in product(families, ((False, 1), (True, 1), (False, 2)))
              if not ((logs or halves > 1) and KINDS[name].lanes)]
    found = []
    with Device(open_transport(device_url)) as device:
        for number, (name, logs, halves) in enumerate(passes):
            def step(done: int, number: int = number) -> None:
                if progress is not None:
                    progress(number * steps + done, len(passes) * steps)

            found.append(_family(device, name, logs, halves, steps, seed + number, step))
    return found


def _family(device: Device, name: str, logs: bool, halves: int, steps: int, seed: int,
            progress: Callable[[int], None]) -> RandomSteps:
    kind, generator = KINDS[name], torch.Generator().manual_seed(seed)
    modes = [mode for mode in every_mode(False) if not ((logs or halves > 1) and mode.scales == Scales.SUPPLIED)]
    if len(modes) > device.geometry.states:
        raise BenchError(f"The device has {device.geometry.states} states: give one with {len(modes)}, such as "
                         "sim:recur32.")
    done = count = limit = 0
    while done < steps:
        length = min(_SEQUENCE, steps - done)
        several = min(_SEQUENCES, (steps - done) // length)
        drawn = [_drawn(modes, kind, logs, done // _SEQUENCE + one, generator) for one in range(several)]
        o, _ = compare(device, kind, drawn, steps=length, generator=generator, halves=halves, name=name)
        done, count, limit = done + several * length, count + o.numel(), limit + int((o.abs() >= _LIMIT).sum())
        progress(done)
    return RandomSteps(
        family=name, write_back="log" if logs else "every token", halves=halves, steps=steps, outputs=count,
        at_limit=limit / count,
        modes=tuple(f"{mode.storage} {mode.scales} {mode.rounding}" for mode in modes))


def _drawn(modes: Sequence[Mode], kind: Kind, logs: bool, sequence: int, generator: torch.Generator) -> list[Mode]:
    """The modes of a sequence: some rotated, which a decay per lane cannot be; with logs of all intervals in turn."""
    turned = torch.rand(len(modes), generator=generator) < 0.5
    return [replace(mode, rotate=bool(turned[number]) and not kind.lanes,
                    interval=_INTERVALS[(number + sequence) % len(_INTERVALS)] if logs else 1)
            for number, mode in enumerate(modes)]


def compare(device: Device, kind: Kind, sequences: Sequence[Sequence[Mode]], *, steps: int, generator: torch.Generator,
            channels: int | None = None, halves: int = 1, name: str = "") -> tuple[Tensor, State]:
    """Sequences of ``steps`` tokens of new heads in as many modes each, full logs committed and every log now and then.

    The model takes all sequences in step, the device one after the other, _ROUND tokens in one exchange; after each its
    registers and raw rows are compared. channels: 16, or the device's lanes with a log, unless given; halves: of
    the keys. Returns the outputs [heads, steps, channels] and the state after them. Raises DifferenceError.
    """
    g, modes = device.geometry, [mode for sequence in sequences for mode in sequence]
    logs = any(mode.interval > 1 for mode in modes)
    state = random_heads(modes, kind.rule, g, generator, channels=channels or (g.head_dim if logs else 16),
                         lane_decay=kind.lanes, halves=halves)
    width = len(sequences[0])
    lots = [range(at, at + width) for at in range(0, state.heads, width)]
    opening = [head_modes(state, lot, bonus=kind.bonus) for lot in lots]
    requests: list[list[list[Request]]] = [[] for _ in lots]
    draw, expected = _Tokens(state, kind, generator), []
    for step in range(steps):
        token, scales = draw(), random_scales(state, generator)
        given = head_tokens(state, token, scales, bonus=kind.bonus)
        expected.append(integer.step(state, token, scales=scales))
        due = integer.due(state) | (torch.rand(state.heads, generator=generator) < 0.03)
        for lot, exchanges in zip(lots, requests, strict=True):
            if step % _ROUND == 0:
                exchanges.append([])
            exchanges[-1] += [recur_request(head - lot[0], given[head]) for head in lot]
            if state.log is not None:
                exchanges[-1] += [Request(opcode=Opcode.COMMIT, slot=head - lot[0]) for head in lot if due[head]]
        if state.log is not None:
            integer.commit(state, due)
    outputs_due = torch.stack(expected, 1)
    for lot, modes_due, exchanges in zip(lots, opening, requests, strict=True):
        device.reset()
        for slot, mode in enumerate(modes_due):
            device.open_state(slot, mode)
        answers = [answer for part in exchanges for answer in device.require(part) if answer.opcode == Opcode.RECUR]
        for number, answer in enumerate(answers):
            step, slot = divmod(number, width)
            if outputs(answer).tolist() != outputs_due[lot[slot], step].tolist():
                raise DifferenceError(f"The output differs from the integer model's ({name}, step {step} of its "
                                      f"sequence, {modes[lot[slot]]}).")
        for slot, mode in enumerate(modes_due):
            check_state(device, slot, state, lot[slot], mode.first_page, kind, name)
    return outputs_due, state


def check_state(device: Device, slot: int, state: State, head: int, first_page: int, kind: Kind, name: str) -> None:
    """Registers and raw rows of a head, which are anything before they are first written. Raises DifferenceError."""
    status = device.state(slot)
    registers, mode = status.registers, state.modes.each[head]
    mine = tuple(int(x[head]) for x in (state.skipped, state.rescaled, state.energy(), state.lost))
    raw, size = pack(state.rows(head), state.geometry), state.geometry.row_bytes
    pairs = [raw[at:at + size] for at in range(0, len(raw), size)]
    even, odd = b"".join(pairs[::2]), b"".join(pairs[1::2])
    rows = device.read_rows(slot, 0, state.halves * state.channels // (3 - mode.planes))
    if (status.mode != head_mode(state, head, first_page, bonus=kind.bonus)
            or status.factors.tolist() != state.factor[head].tolist()
            or (registers.skipped, registers.rescaled, registers.energy, registers.lost) != mine
            or (registers.stored and tuple(rows) != ((odd, even) if mode.planes == 2 else (even, odd)))):
        raise DifferenceError(f"Registers or rows differ from the integer model's ({name}, {mode}).")


class _Tokens:
    """Tokens of a family for the heads of a state: half of the heads have keys of at most unit norm and write strengths
    below 1, with which a state stays within its range.
    """

    def __init__(self, state: State, kind: Kind, generator: torch.Generator) -> None:
        self._state, self._kind, self._generator = state, kind, generator
        self._tame = torch.rand(state.heads, generator=generator) < 0.5
        self._decay = random_token(state, generator, frozen=0.0).decay

    def __call__(self) -> Token:
        kind = self._kind
        token = random_token(self._state, self._generator)
        still = factor.kept(token.decay, token.beta)
        norm = token.k.double().square().sum(-1, keepdim=True).sqrt()
        small = (token.k * (_ONE_KEY / norm.clamp(min=_ONE_KEY))).trunc().long()
        k = torch.where(self._tame[:, None], small, token.k)
        beta = torch.where(self._tame, token.beta % _ONE_BETA, token.beta)
        if not kind.strength:
            beta = torch.where(still, 0, _ONE_BETA)
        decay = token.decay if not kind.fixed else torch.where(still[:, None], ONE_DECAY, self._decay)
        if not kind.decays:
            decay = torch.full_like(decay, ONE_DECAY)
        v = token.v.clone()
        if kind.normaliser:
            v[:, -1] = 1 << 10
        return Token(token.q, k, token.b if kind.bonus else k, v, decay, beta)
