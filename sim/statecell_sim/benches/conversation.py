"""Random commands that reach every state of a device, each with the response that it must give."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from statecell.device import append_request, attend_request, map_request
from statecell.link.framing import Request, Response
from statecell.spec import formats
from statecell.spec.commands import Flag, Opcode
from statecell.spec.geometry import Geometry
from statecell_sim.benches.vectors import corners, random_vector
from statecell_sim.golden import GoldenDevice

_WEIGHTS = {
    Opcode.APPEND: 6, Opcode.ATTEND: 10, Opcode.MAP: 2, Opcode.OPEN: 1, Opcode.TRUNCATE: 1, Opcode.READ_ROWS: 1,
    Opcode.WRITE_ROWS: 1, Opcode.FREE: 0.3, Opcode.RESET: 0.1,
}  # fmt: skip


def shift_of(q: Tensor, k: Tensor, below: int) -> int:
    """A score shift at which the largest product of q and k is about 2^``below`` octaves."""
    most = int((q.double() @ k.double().T).abs().max())
    return max(0, min(formats.SHIFT_LIMIT, most.bit_length() - below))


class Conversation:
    """Frames for a device and the responses due, from a device in software that goes along.

    ``frames`` and ``expected`` grow by one with each command; ``requests`` holds the commands themselves.
    """

    def __init__(self, geometry: Geometry, seed: int) -> None:
        self.geometry = geometry
        self.rng = random.Random(f"conversation {seed}")
        self.golden = GoldenDevice(geometry)
        self.frames: list[bytes] = []
        self.expected: list[Response] = []
        self.requests: list[Request] = []
        # Rows of the tokens of a slot: ATTEND and TRUNCATE keep the planes of a token together.
        self._bounds: dict[int, list[int]] = {}
        self._keys: dict[int, Tensor] = {}
        self._free = list(range(geometry.pages))

    def say(self, request: Request, *, damaged: bool = False) -> None:
        """Add a command; ``damaged`` turns over a bit of its CRC."""
        sequence = len(self.frames)
        frame = bytearray(request.encode(sequence, self.geometry.link_bytes))
        if damaged:
            frame[-max(4, self.geometry.link_bytes)] ^= 1 << self.rng.randrange(8)
        self.frames.append(bytes(frame))
        self.requests.append(request)
        answer = self.golden.answer(request, damaged=damaged)
        assert answer.payload is not None, f"the golden device does not know the payload of {request.opcode.name}"
        self.expected.append(Response(opcode=request.opcode, sequence=sequence, slot=request.slot,
                                      status=answer.status, value=answer.value, payload=answer.payload))

    # -- commands that succeed ----------------------------------------------------------------------------------------
    def open(self, slot: int, pages: int) -> None:
        """Open a slot with pages of its own, in no order."""
        self.say(Request(opcode=Opcode.OPEN, slot=slot))
        self._bounds[slot] = [0]
        self._keys[slot] = torch.zeros(1, self.geometry.head_dim, dtype=torch.int64)
        self.map(slot, pages)

    def map(self, slot: int, pages: int) -> None:
        """Map free pages."""
        new = [self._free.pop(self.rng.randrange(len(self._free))) for _ in range(min(pages, len(self._free)))]
        if new:
            self.say(map_request(slot, new))

    def append(self, slot: int, k: Sequence[Tensor], v: Sequence[Tensor], *, wide: bool = False) -> None:
        """Append tokens that the slot has room for."""
        keys, values = torch.stack(list(k)), torch.stack(list(v))
        planes = 2 if wide else 1
        flags = Flag.WIDE if wide else 0
        if not wide and self.geometry.zero_point and self.rng.random() < 0.5:
            flags = Flag.ZERO_POINT
        self.say(append_request(slot, keys.numpy().astype(np.int16), values.numpy().astype(np.int16), flags))
        held = self._bounds[slot][-1]
        self._bounds[slot] += [held + planes * (i + 1) for i in range(len(keys))]
        self._keys[slot] = torch.cat([self._keys[slot], keys])

    def attend(self, slot: int, q: Sequence[Tensor], ranges: Sequence[tuple[int, int]], shift: int) -> None:
        """Attend, every query over its range of rows."""
        start, end = np.array(ranges).T
        self.say(attend_request(slot, torch.stack(list(q)).numpy().astype(np.int16), start, end, shift))

    # -- scenes -------------------------------------------------------------------------------------------------------
    def corners(self) -> None:
        """Every row of the array in use: corner vectors, equal keys, one row, all rows, page edges, wide tokens."""
        g, rng = self.geometry, self.rng
        narrow, wide = 0, g.slots - g.tiles
        self.open(narrow, g.pages_per_slot)
        self.open(wide, g.pages_per_slot)
        special = corners(g.head_dim)
        vectors = [special[i % len(special)] for i in range(g.slot_rows)]
        half = g.slot_rows // 2
        same = random_vector(rng, g.head_dim)
        for at in range(0, half, 4):
            self.append(narrow, vectors[at:at + 4], vectors[at + 1:at + 5])
        for _ in range(half):  # equal scores
            self.append(narrow, [same], [random_vector(rng, g.head_dim)])
        self.append(wide, vectors[:half], vectors[-half:], wide=True)
        edges = [1, g.page_rows - 1, g.page_rows, g.page_rows + 1, half, g.slot_rows - 1, g.slot_rows]
        for edge in edges:
            q = [rng.choice(special) for _ in range(g.lanes)]
            shift = shift_of(torch.stack(q), torch.stack(vectors), rng.randint(2, 12))
            self.attend(narrow, q, [(0, edge)] * g.lanes, shift)
            self.attend(narrow, q[:1], [(edge - 1, edge)], shift)
            self.attend(wide, q, [(0, (edge + 1) // 2 * 2)] * g.lanes, shift)
        q = [same] * g.lanes
        for below in (0, 4, 9, 20):  # from scores that are all equal to scores that saturate
            ranges = [(half, g.slot_rows), *[(0, g.slot_rows)] * (g.lanes - 1)]
            self.attend(narrow, q, ranges, shift_of(same[None], same[None], below))

    def wander(self, commands: int) -> None:
        """Random commands, some refused, some damaged."""
        self.open(0, 2)
        for _ in range(commands):
            opcode = self.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            if self.rng.random() < 0.12:
                self._refused(opcode)
            elif opcode in (Opcode.OPEN, Opcode.RESET):
                self._reopen(opcode)
            else:
                self._random(opcode, self.rng.choice(list(self._bounds)))

    def _reopen(self, opcode: Opcode) -> None:
        closed = [s for s in range(self.geometry.slots) if s not in self._bounds]
        if opcode is Opcode.RESET:
            self.say(Request(opcode=opcode))
            self._bounds.clear()
            self._free = list(range(self.geometry.pages))
            closed = list(range(self.geometry.slots))
        if closed:
            self.open(self.rng.choice(closed), self.rng.randint(1, self.geometry.pages_per_slot))

    def _random(self, opcode: Opcode, slot: int) -> None:
        g, rng, bounds = self.geometry, self.rng, self._bounds[slot]
        state = self.golden.slots[slot]
        room = len(state.pages) * g.page_rows - bounds[-1]
        if opcode is Opcode.MAP:
            self.map(slot, min(rng.randint(1, 4), g.pages_per_slot - len(state.pages)))
        elif opcode is Opcode.APPEND:
            wide = rng.random() < 0.3
            count = min(rng.choice([1, 1, 1, 2, 5, g.slot_rows]), room // 2 if wide else room)
            if count:
                x = [random_vector(rng, g.head_dim) for _ in range(2 * count)]
                self.append(slot, x[:count], x[count:], wide=wide)
        elif opcode is Opcode.ATTEND and bounds[-1]:
            lanes = rng.randint(1, g.lanes)
            ranges = [sorted(rng.sample(bounds, 2)) for _ in range(lanes)]
            if rng.random() < 0.5:
                ranges = [[0, bounds[-1]]] * lanes
            q = [random_vector(rng, g.head_dim) for _ in range(lanes)]
            self.attend(slot, q, [(a, b) for a, b in ranges],
                        shift_of(torch.stack(q), self._keys[slot], rng.randint(0, 11)))
        elif opcode is Opcode.TRUNCATE:
            kept = rng.randint(len(bounds) // 2, len(bounds) - 1)
            self.say(Request(opcode=opcode, slot=slot, count=bounds[kept]))
            del bounds[kept + 1:]
        elif opcode is Opcode.READ_ROWS and bounds[-1]:
            first = rng.randrange(bounds[-1])
            self.say(Request(opcode=opcode, slot=slot, first=first, count=rng.randint(1, bounds[-1] - first)))
        elif opcode is Opcode.WRITE_ROWS and bounds[-1]:
            token = rng.randrange(len(bounds) - 1)
            first, count = bounds[token], bounds[token + 1] - bounds[token]
            if count <= room:  # a copy of a token
                raw = self.golden.raw_rows(slot, first, first + count)
                self.say(Request(opcode=opcode, slot=slot, count=count, payload=raw))
                bounds.append(bounds[-1] + count)
        elif opcode is Opcode.FREE and len(self._bounds) > 1:
            self._free += state.pages
            del self._bounds[slot], self._keys[slot]
            self.say(Request(opcode=opcode, slot=slot))

    def _refused(self, opcode: Opcode) -> None:
        """A damaged frame, or a command that the slot's state does not allow."""
        g, rng = self.geometry, self.rng
        slot = rng.choice(list(self._bounds))
        held = self._bounds[slot][-1]
        x = random_vector(rng, g.head_dim)[None].numpy().astype(np.int16)
        one, beyond = np.array([0]), np.array([held + 1])
        choices = [
            (append_request(slot, x, x, Flag.WIDE), held + 2 <= len(self.golden.slots[slot].pages) * g.page_rows),
            (attend_request(slot, x, one, one + 1, 20), held > 0),
            (attend_request(slot, x, one, beyond, 20), False),
            (attend_request(slot, x, one, one, 20), False),
            (map_request(slot, [g.pages]), False),
            (Request(opcode=Opcode.OPEN, slot=slot), False),
            (Request(opcode=Opcode.OPEN, slot=g.slots), False),
            (Request(opcode=Opcode.TRUNCATE, slot=slot, count=held + 1), False),
            (Request(opcode=Opcode.READ_ROWS, slot=slot, first=held, count=1), False),
            (Request(opcode=Opcode.FREE, slot=slot), True),
            (Request(opcode=opcode, slot=slot, count=1, payload=bytes(16 * 31)), False),
        ]
        request, may_succeed = rng.choice(choices)
        self.say(request, damaged=may_succeed or rng.random() < 0.3)
