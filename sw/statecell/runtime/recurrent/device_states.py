"""Recurrent states on a device: groups of its slots, and the way back to a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from statecell.device import Device, StateToken, outputs, recur_request
from statecell.model.recurrent import factor, integer
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, RecurrentError, Rounding, Scales, Storage
from statecell.model.recurrent.state import DEFAULT_FEEDBACK
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.places import Places
from statecell.runtime.recurrent.engine import StateCounters, StateShape, seed_of
from statecell.snapshot import StateSnapshot, state_pages
from statecell.spec import formats
from statecell.spec.commands import StateFlag, StateMode
from statecell.spec.geometry import Geometry

REPLAYED = 32
"""Most tokens that a snapshot leaves to be taken again when it is restored; more of them are read from the device."""


@dataclass(frozen=True)
class Remembered:
    """A group at some time: ``base``, the states of its heads (None: empty ones), and the tokens taken ``since``."""

    base: tuple[StateSnapshot, ...] | None
    since: tuple[Token, ...]

    @property
    def tokens(self) -> int:
        """Tokens since the base."""
        return sum(len(tokens.k) for tokens in self.since)


@dataclass
class _Group:
    shape: StateShape
    slots: list[int]
    opened: list[StateMode]
    now: Remembered
    rescaled: int = 0  # as the slots' registers said when they were last looked at


class DeviceStates:
    """StateEngine over a device's recurrent slots, each head in one of them.

    A snapshot moves nothing as long as few tokens were taken since the last one that did: to restore it, those tokens
    are taken again, which gives the same bits. Raises what Device raises; ArrayFullError before anything is sent where
    the states of a group do not all fit.
    """

    longest_interval = 1
    """The gateware writes a state back at every token."""

    def __init__(self, device: Device, places: Places) -> None:
        self._device, self._places = device, places
        self._groups: dict[int, _Group] = {}
        self._next = 0
        self._counters = StateCounters()

    @property
    def geometry(self) -> Geometry:
        """Of the device."""
        return self._device.geometry

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int]) -> int:
        """Open empty states. Raises UnsupportedError for a mode or number of channels that the device has not."""
        self._check(modes, shape)
        blank = [state_mode(mode, shape, shift[head], seed_of(head)) for head, mode in enumerate(modes)]
        places = self._places.take_states([len(state_pages(mode, self.geometry.page_rows)) for mode in blank])
        opened = [state_mode(mode, shape, shift[head], seed_of(head), first_page=places[head][1])
                  for head, mode in enumerate(modes)]
        slots = [slot for slot, _ in places]
        for slot, mode in zip(slots, opened, strict=True):
            self._device.open_state(slot, mode)
        group, self._next = self._next, self._next + 1
        self._groups[group] = _Group(shape, slots, opened, Remembered(None, ()))
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

    def step(self, group: int, tokens: Token) -> Tensor:
        """Take tokens one after the other, all heads of one before the next, in one pipelined exchange."""
        held = self._groups[group]
        decays = self.geometry.head_dim if held.shape.lane_decay else 1
        integer.check_token(tokens, heads=len(held.slots), channels=held.shape.channels, dim=self.geometry.head_dim,
                            decays=decays, tokens=len(tokens.k))
        if held.shape.rule.decay_first and not torch.equal(tokens.b, tokens.k):
            raise RecurrentError("b must be k where the read-out sees the decayed state; give k for it")
        o = self._take(held, tokens)
        held.now = Remembered(held.now.base, (*held.now.since, tokens))
        return o

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
        held.rescaled = sum(state.status.registers.rescaled for state in snapshot.base or ())
        for tokens in snapshot.since:
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
        answers = self._device.require([
            recur_request(group.slots[h], StateToken(
                q=q[t, h], k=k[t, h], v=v[t, h], b=b[t, h] if bonus else None, beta=beta[t][h],
                decay=decay[t, h] if lanes else int(decay[t, h, 0])))
            for t in range(count) for h in range(heads)])
        planes = torch.tensor([2 if mode.flags & StateFlag.WIDE else 1 for mode in group.opened])
        frozen = factor.kept(tokens.decay, tokens.beta)
        rows = group.shape.channels * planes
        self._count(tokens=count * heads, rows_read=count * int(rows.sum()),
                    rows_written=int((rows * ~frozen).sum()), skipped=int(frozen.sum()))
        o = np.stack([outputs(answer) for answer in answers])
        return torch.from_numpy(o.reshape(count, heads, -1)).to(torch.int64)

    def _look(self, group: _Group) -> None:
        """Count the new scales since the registers were last looked at."""
        rescaled = sum(self._device.state(slot).registers.rescaled for slot in group.slots)
        self._count(rescaled=rescaled - group.rescaled)
        group.rescaled = rescaled

    def _count(self, **more: int) -> None:
        self._counters = replace(
            self._counters, **{name: getattr(self._counters, name) + count for name, count in more.items()})

    def _check(self, modes: Sequence[Mode], shape: StateShape) -> None:
        most = 2 * self.geometry.head_dim
        if shape.channels % 8 or not 16 <= shape.channels <= most:
            raise UnsupportedError(f"a recurrent head has {shape.channels} value channels; this device takes a "
                                   f"multiple of 8 from 16 to {most}: use the integer model (model:)")
        longest = max(mode.interval for mode in modes)
        if longest > self.longest_interval:
            raise UnsupportedError(f"the state is to be written back every {longest} tokens; this device does at most "
                                   f"every {self.longest_interval}")
        if any(mode.scales == Scales.SUPPLIED for mode in modes):
            raise UnsupportedError("scales that the host supplies do not reach a device from here; use held or fresh")
        if shape.lane_decay and any(mode.rotate for mode in modes):
            raise RecurrentError("a decay per lane cannot be rotated; use modes with rotate=False")


def state_mode(mode: Mode, shape: StateShape, shift: int, seed: int, first_page: int = 0) -> StateMode:
    """A head's mode as OPEN has it, with a bonus where the read-out sees the state before its decay."""
    residual = mode.storage == Storage.RESIDUAL
    flags = {
        StateFlag.DELTA: shape.rule.delta, StateFlag.WIDE: mode.planes == 2, StateFlag.RESIDUAL: residual,
        StateFlag.FRESH: mode.scales == Scales.FRESH, StateFlag.SUPPLIED: mode.scales == Scales.SUPPLIED,
        StateFlag.STOCHASTIC: mode.rounding == Rounding.STOCHASTIC, StateFlag.ROTATE: mode.rotate,
        StateFlag.LANE_DECAY: shape.lane_decay, StateFlag.DECAY_FIRST: shape.rule.decay_first,
        StateFlag.BONUS: not shape.rule.decay_first,
    }
    return StateMode(
        flags=StateFlag(sum(flag for flag, on in flags.items() if on)), shift=shift, channels=shape.channels,
        feedback=DEFAULT_FEEDBACK if residual else 1 << formats.FEEDBACK_FRACTION, first_page=first_page, seed=seed)
