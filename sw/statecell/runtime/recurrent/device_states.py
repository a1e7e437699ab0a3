"""Recurrent states on a device: groups of its slots, and the way back to a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from statecell.device import Device, StateToken, outputs, recur_request
from statecell.link.framing import Request
from statecell.model.recurrent import factor, integer
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, RecurrentError, Rounding, Scales, Storage
from statecell.model.recurrent.state import DEFAULT_FEEDBACK
from statecell.recalibration import recalibrate
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.places import Places
from statecell.runtime.recurrent.engine import (
    StateCounters,
    StateShape,
    commit_rows,
    log_rows,
    recalibration_rows,
    seed_of,
)
from statecell.runtime.recurrent.scales import ScaleSource
from statecell.snapshot import StateSnapshot, state_pages
from statecell.spec import formats
from statecell.spec.commands import Opcode, StateFlag, StateMode
from statecell.spec.geometry import Geometry

REPLAYED = 32
"""Most tokens that a snapshot leaves to be taken again when it is restored; more of them are read from the device."""


@dataclass(frozen=True)
class Remembered:
    """A group at some time: ``base``, the states of its heads (None: empty ones), and the tokens taken ``since``, with
    None for a recalibration among them.
    """

    base: tuple[StateSnapshot, ...] | None
    since: tuple[Token | None, ...]

    @property
    def tokens(self) -> int:
        """Tokens since the base."""
        return sum(len(tokens.k) for tokens in self.since if tokens is not None)


@dataclass
class _Group:
    shape: StateShape
    slots: list[int]
    opened: list[StateMode]
    intervals: list[int]
    logged: list[int]
    now: Remembered
    rescaled: int = 0  # as the slots' registers said when they were last looked at


class DeviceStates:
    """StateEngine over a device's recurrent slots, each head in one of them.

    A snapshot moves nothing as long as few tokens were taken since the last one that did: to restore it, those tokens
    are taken again, which gives the same bits. Raises what Device raises; ArrayFullError before anything is sent where
    the states of a group do not all fit.
    """

    def __init__(self, device: Device, places: Places) -> None:
        self._device, self._places = device, places
        self._groups: dict[int, _Group] = {}
        self._next = 0
        self._counters = StateCounters()

    @property
    def geometry(self) -> Geometry:
        """Of the device."""
        return self._device.geometry

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        """Open empty states. Raises UnsupportedError as `check_modes`."""
        self.check_modes(modes, shape)
        blank = [state_mode(mode, shape, shift[head], seed_of(head), None if feedback is None else feedback[head])
                 for head, mode in enumerate(modes)]
        places = self._places.take_states([len(state_pages(mode, self.geometry.page_rows)) for mode in blank])
        opened = [replace(mode, first_page=page) for mode, (_, page) in zip(blank, places, strict=True)]
        slots = [slot for slot, _ in places]
        for slot, mode in zip(slots, opened, strict=True):
            self._device.open_state(slot, mode)
        group, self._next = self._next, self._next + 1
        self._groups[group] = _Group(
            shape, slots, opened, [mode.interval for mode in modes], [0] * len(modes), Remembered(None, ()))
        return group

    def free_states(self, groups: Sequence[int]) -> None:
        """Close groups and take their slots and pages back."""
        for number in groups:
            self._look(self._groups[number])
            group = self._groups.pop(number)
            for slot, mode in zip(group.slots, group.opened, strict=True):
                self._device.free_slot(slot)
                self._places.give_pages(0, list(state_pages(mode, self.geometry.page_rows)))
            self._places.give_slots(group.slots)

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        """Take tokens one after the other, all heads of one before the next, in one pipelined exchange.

        A log that a token fills is written back behind it. `scales` never come: `check_modes` refuses such modes.
        """
        assert scales is None
        held = self._groups[group]
        width = held.shape.halves * self.geometry.head_dim
        integer.check_token(tokens, heads=len(held.slots), channels=held.shape.channels, dim=width,
                            decays=width if held.shape.lane_decay else 1, tokens=len(tokens.k))
        if held.shape.rule.decay_first and not torch.equal(tokens.b, tokens.k):
            raise RecurrentError("b must be k where the read-out sees the decayed state; give k for it")
        o = self._take(held, tokens)
        held.now = Remembered(held.now.base, (*held.now.since, tokens))
        return o

    def recalibrate(self, group: int) -> None:
        """Recalibrate all heads of a group."""
        held = self._groups[group]
        self._recalibrate(held)
        held.now = Remembered(held.now.base, (*held.now.since, None))

    def snapshot(self, group: int) -> Remembered:
        """The group now."""
        held = self._groups[group]
        if held.now.tokens > REPLAYED:
            held.now = Remembered(tuple(self._device.snapshot(slot) for slot in held.slots), ())
        return held.now

    def restore(self, group: int, snapshot: Remembered) -> None:
        """Back to a snapshot."""
        held = self._groups[group]
        self._look(held)
        for head, (slot, mode) in enumerate(zip(held.slots, held.opened, strict=True)):
            if snapshot.base is None:
                self._device.free_slot(slot)
                self._device.open_state(slot, mode)
            else:
                self._device.restore(slot, snapshot.base[head], through=self._places.through)
        registers = [state.status.registers for state in snapshot.base or ()]
        held.rescaled = sum(x.rescaled for x in registers)
        held.logged = [x.logged for x in registers] or [0] * len(held.slots)
        for tokens in snapshot.since:
            if tokens is None:
                self._recalibrate(held)
            else:
                self._take(held, tokens)
        held.now = snapshot

    def counters(self) -> StateCounters:
        """Totals so far; tokens that a restore takes again count again."""
        for group in self._groups.values():
            self._look(group)
        return self._counters

    def stored(self, group: int) -> list[StateSnapshot]:
        """The states of a group's heads as the device holds them."""
        return [self._device.snapshot(slot) for slot in self._groups[group].slots]

    def _take(self, group: _Group, tokens: Token) -> Tensor:
        bonus, lanes = not group.shape.rule.decay_first, group.shape.lane_decay
        q, k, b, v = (x.numpy().astype(np.int16) for x in (tokens.q, tokens.k, tokens.b, tokens.v))
        decay, beta = tokens.decay.numpy(), tokens.beta.tolist()
        count, heads = tokens.k.shape[:2]
        frozen = factor.kept(tokens.decay, tokens.beta)
        requests: list[Request] = []
        commits = written = read = 0
        channels, dim = group.shape.channels, self.geometry.head_dim
        rows = _rows(group)
        for t in range(count):
            requests += [
                recur_request(group.slots[h], StateToken(
                    q=q[t, h], k=k[t, h], v=v[t, h], b=b[t, h] if bonus else None, beta=beta[t][h],
                    decay=decay[t, h] if lanes else int(decay[t, h, 0])))
                for h in range(heads)]
            for h, moved in enumerate((~frozen[t]).tolist()):
                logs = group.intervals[h] > 1
                read += rows[h] + group.logged[h] * log_rows(channels, dim)
                group.logged[h] += logs and moved
                due = logs and group.logged[h] == group.intervals[h]
                if due:
                    requests.append(Request(opcode=Opcode.COMMIT, slot=group.slots[h]))
                    group.logged[h] = 0
                    read += commit_rows(group.intervals[h], channels, dim)
                commits += due
                written += rows[h] * (due if logs else moved) + log_rows(channels, dim) * (logs and moved)
        answers = [answer for request, answer in zip(requests, self._device.require(requests), strict=True)
                   if request.opcode == Opcode.RECUR]
        self._count(tokens=count * heads, rows_read=read, rows_written=written, commits=commits,
                    skipped=int(frozen.sum()))
        o = np.stack([outputs(answer) for answer in answers])
        return torch.from_numpy(o.reshape(count, heads, -1)).to(torch.int64)

    def _recalibrate(self, group: _Group) -> None:
        shape, read, written = group.shape, 0, 0
        for h, rows in enumerate(_rows(group)):
            one = recalibration_rows(group.logged[h] if group.intervals[h] > 1 else None, rows, shape.channels,
                                     self.geometry.head_dim)
            read, written = read + one[0], written + one[1]
        recalibrate(self._device, group.slots)
        group.logged = [0] * len(group.slots)
        self._count(rows_read=read, rows_written=written, recalibrations=len(group.slots))

    def _look(self, group: _Group) -> None:
        """Count the new scales since the registers were last looked at."""
        rescaled = sum(self._device.state(slot).registers.rescaled for slot in group.slots)
        self._count(rescaled=rescaled - group.rescaled)
        group.rescaled = rescaled

    def _count(self, **more: int) -> None:
        self._counters = replace(
            self._counters, **{name: getattr(self._counters, name) + count for name, count in more.items()})

    def check_modes(self, modes: Sequence[Mode], shape: StateShape) -> None:
        """Raise UnsupportedError for a mode or a number of channels that the device has not."""
        most = 2 * self.geometry.head_dim
        if shape.channels % 8 or not 16 <= shape.channels <= most:
            raise UnsupportedError(f"a recurrent head has {shape.channels} value channels; this device takes a "
                                   f"multiple of 8 from 16 to {most}: use the integer model (model:)")
        logs = any(mode.interval > 1 for mode in modes)
        if shape.halves > 1 and (logs or shape.lane_decay):
            raise UnsupportedError(
                f"keys of more than {self.geometry.head_dim} lanes lie in two rows each, which this device writes back "
                "at every token with one decay a head; use a format such as int4, or the integer model (model:)")
        if logs and (shape.lane_decay or shape.channels != self.geometry.head_dim):
            raise UnsupportedError(
                "a state is to be written back every few tokens only, which this device does with one decay a head and "
                f"{self.geometry.head_dim} value channels; use a format that writes back at every token, such as int4, "
                "or the integer model (model:)")
        if any(mode.scales == Scales.SUPPLIED for mode in modes):
            raise UnsupportedError("scales that the host supplies do not reach a device from here; use held or fresh")
        if shape.lane_decay and any(mode.rotate for mode in modes):
            raise UnsupportedError("a decay per lane cannot be rotated; use modes with rotate=False")


def _rows(group: _Group) -> list[int]:
    """Rows of each head, low planes counted too."""
    shape = group.shape
    return [shape.channels * shape.halves * (2 if mode.flags & StateFlag.WIDE else 1) for mode in group.opened]


def state_mode(mode: Mode, shape: StateShape, shift: int, seed: int, feedback: int | None = None) -> StateMode:
    """A head's mode as OPEN has it, on page 0, with a bonus where the read-out sees the state before its decay."""
    residual = mode.storage == Storage.RESIDUAL
    flags = {
        StateFlag.DELTA: shape.rule.delta, StateFlag.WIDE: mode.planes == 2, StateFlag.RESIDUAL: residual,
        StateFlag.FRESH: mode.scales == Scales.FRESH, StateFlag.SUPPLIED: mode.scales == Scales.SUPPLIED,
        StateFlag.STOCHASTIC: mode.rounding == Rounding.STOCHASTIC, StateFlag.ROTATE: mode.rotate,
        StateFlag.LANE_DECAY: shape.lane_decay, StateFlag.DECAY_FIRST: shape.rule.decay_first,
        StateFlag.BONUS: not shape.rule.decay_first, StateFlag.HALVES: shape.halves > 1,
    }
    return StateMode(
        flags=StateFlag(sum(flag for flag, on in flags.items() if on)), shift=shift, channels=shape.channels,
        feedback=(DEFAULT_FEEDBACK if feedback is None else feedback) if residual else 1 << formats.FEEDBACK_FRACTION,
        first_page=0, interval=mode.interval, seed=seed)
