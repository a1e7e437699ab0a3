"""New scales for the rows of recurrent states on a device, by commands that every device with states has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from statecell.device import Device, StateToken, map_request, open_state_request, recur_request, restore_request
from statecell.link.framing import Request
from statecell.snapshot import StateStatus, decode_status, state_pages
from statecell.spec import formats
from statecell.spec.commands import Opcode, StateFlag, StateMode


def recalibrate(device: Device, slots: Sequence[int]) -> None:
    """Give every row of the recurrent states in ``slots`` the scale that fits what it holds, their logs added first.

    The states are then, bit for bit, what `model.recurrent.integer.commit` with ``fresh`` makes of them
    (docs/numerics.md, 8.6). Rows do not leave the array: a state is closed, opened in its pages with fresh scales,
    given its registers again and written back once, by COMMIT or by a token that adds nothing, and goes back to its
    own mode in the same way. That takes three exchanges for any number of slots.

    Raises SlotError for a slot without a state, before anything has changed. After another error the states may be
    closed, or have fresh scales from then on.
    """
    slots = list(dict.fromkeys(slots))
    before = [decode_status(answer.payload) for answer in device.require([_state(slot) for slot in slots])]
    requests = []
    for slot, status in zip(slots, before, strict=True):
        mode = replace(status.mode, flags=fresh(status.mode.flags))
        requests += [*_reopen(device, slot, replace(status, mode=mode)), *_write_back(device, slot, status),
                     _state(slot)]
    answers = [answer for request, answer in zip(requests, device.require(requests), strict=True)
               if request.opcode == Opcode.STATE]
    requests = []
    for slot, status, answer in zip(slots, before, answers, strict=True):
        after = decode_status(answer.payload)
        requests += _reopen(device, slot, replace(after, mode=replace(after.mode, flags=status.mode.flags)))
    device.require(requests)


def fresh(flags: StateFlag) -> StateFlag:
    """The flags of a mode that is the same but for its scales, which are fresh."""
    return (flags | StateFlag.FRESH) & ~StateFlag.SUPPLIED


def nothing(mode: StateMode, head_dim: int) -> StateToken:
    """A token that adds nothing to a state of this mode, but has its rows written or a place of its log taken."""
    width = head_dim * (2 if mode.flags & StateFlag.HALVES else 1)
    zeros, one = np.zeros(width, np.int16), 1 << formats.DECAY_FRACTION
    return StateToken(
        q=zeros, k=zeros, v=np.zeros(mode.channels, np.int16), b=zeros if mode.flags & StateFlag.BONUS else None,
        decay=np.full(width, one) if mode.flags & StateFlag.LANE_DECAY else one, beta=1)  # of beta 0 it would be frozen


def _state(slot: int) -> Request:
    return Request(opcode=Opcode.STATE, slot=slot)


def _reopen(device: Device, slot: int, status: StateStatus) -> list[Request]:
    """The state in its pages as ``status`` says, in whatever mode the slot was."""
    mode = status.mode
    return [Request(opcode=Opcode.FREE, slot=slot), open_state_request(slot, mode),
            map_request(slot, state_pages(mode, device.geometry.page_rows)), restore_request(slot, status)]


def _write_back(device: Device, slot: int, status: StateStatus) -> list[Request]:
    mode, requests = replace(status.mode, flags=fresh(status.mode.flags)), []
    if not status.registers.logged:
        requests.append(recur_request(slot, nothing(mode, device.geometry.head_dim)))
    if mode.interval > 1:
        requests.append(Request(opcode=Opcode.COMMIT, slot=slot))
    return requests
