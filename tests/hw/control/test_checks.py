from __future__ import annotations

import random
from typing import Any

import pytest

from statecell.spec import frame
from statecell.spec.commands import RECURRENT, Flag, Opcode, Status, opcodes
from statecell.spec.geometry import Geometry, config
from statecell.spec.serial import DIVISOR_BITS, LEAST_DIVISOR
from statecell_hw.control.checks import SLOT_COMMANDS, TOKEN_COMMANDS, Checks
from tests.hw.streams import simulate

ROWS = {Opcode.APPEND, Opcode.WRITE_ROWS}


def length(opcode: int, count: int, g: Geometry) -> int:
    """Payload bytes that a command needs, padded to blocks."""
    size = {
        Opcode.MAP: 2 * count,
        Opcode.APPEND: 4 * g.head_dim * count,
        Opcode.ATTEND: -(-4 * count // 16) * 16 + 2 * g.head_dim * count,
        Opcode.WRITE_ROWS: 2 * g.row_bytes * count,
    }.get(Opcode(opcode), 0)
    return -(-size // frame.BLOCK)


def expected(h: dict[str, int], e: dict[str, int], g: Geometry) -> Status:
    """The contract in software."""
    if h["opcode"] not in opcodes(g.states):
        return Status.BAD_OPCODE
    opcode = Opcode(h["opcode"])
    count = h["count"]
    most = {
        Opcode.MAP: g.pages_per_slot, Opcode.APPEND: g.slot_rows, Opcode.ATTEND: g.lanes,
        Opcode.READ_ROWS: g.slot_rows, Opcode.WRITE_ROWS: g.slot_rows,
    }.get(opcode)  # fmt: skip
    if opcode in (*SLOT_COMMANDS, *RECURRENT):
        if h["slot"] >= g.slots:
            return Status.BAD_SLOT
        if bool(e["open"]) == (opcode == Opcode.OPEN):
            return Status.SLOT_OPEN if e["open"] else Status.SLOT_CLOSED
    if opcode in (TOKEN_COMMANDS if e.get("recurrent") else RECURRENT):
        return Status.WRONG_KIND
    if g.states and opcode == Opcode.OPEN and h["flags"] and (
            h["flags"] != Flag.RECURRENT or h["slot"] >= g.states):
        return Status.BAD_FLAGS
    known = Flag.WIDE | Flag.ZERO_POINT if g.zero_point else Flag.WIDE
    both = Flag.WIDE | Flag.ZERO_POINT
    if opcode == Opcode.APPEND and (h["flags"] & ~int(known) or h["flags"] & both == both):
        return Status.BAD_FLAGS
    if opcode == Opcode.ATTEND and h["shift"] > 63:
        return Status.BAD_FLAGS
    if most is not None and not 1 <= count <= most:
        return Status.BAD_COUNT
    if opcode == Opcode.CONNECT and count and not LEAST_DIVISOR <= count < 1 << DIVISOR_BITS:
        return Status.BAD_COUNT
    opens_state = g.states and opcode == Opcode.OPEN and h["flags"]
    of_slot = {Opcode.RECUR: "blocks", Opcode.RESTORE: "snapshot"}.get(opcode)
    needed = e[of_slot] if of_slot else 1 if opens_state else length(opcode, count, g)
    if h["blocks"] != needed:
        return Status.BAD_LENGTH
    if opcode == Opcode.TRUNCATE and count > e["rows"]:
        return Status.BAD_RANGE
    if opcode == Opcode.READ_ROWS and h["first"] + count > e["rows"]:
        return Status.BAD_RANGE
    if opcode == Opcode.MAP and e["pages"] + count > g.pages_per_slot:
        return Status.FULL
    added = 2 * count if opcode == Opcode.APPEND and h["flags"] & Flag.WIDE else count
    if opcode == Opcode.RECUR and e["interval"] > 1 and e["logged"] == e["interval"]:
        return Status.FULL
    if opcode == Opcode.STATE and e["logged"]:
        return Status.LOGGED
    if opcode in ROWS and e["rows"] + added > e["pages"] * g.page_rows:
        return Status.FULL
    return Status.OK


@pytest.mark.parametrize("name", ["tiny", "tiny2", "bench64", "recur32"])
def test_random_headers_get_the_first_status_that_applies(name: str) -> None:
    g = config(name)
    rng = random.Random(1)
    dut = Checks(g)
    seen = set()

    async def bench(ctx: Any) -> None:
        for _ in range(4000):
            opcode = rng.choice([*Opcode, *Opcode, *ROWS, rng.randrange(256)])
            limit = rng.choice([3, g.lanes + 1, g.slot_rows + 1, 2 * LEAST_DIVISOR, 1 << DIVISOR_BITS + 1, 1 << 32])
            header = {
                "version": frame.VERSION,
                "opcode": opcode,
                "sequence": rng.randrange(1 << 16),
                "slot": rng.randrange(g.slots) if rng.random() < 0.95 else rng.randrange(1 << 16),
                "count": rng.randrange(limit),
                "first": rng.randrange(rng.choice([4, 1 << 16])),
                "shift": rng.randrange(64) if rng.random() < 0.9 else rng.randrange(256),
                "flags": rng.choice([0, 0, 0, 1, 2, 3, 4, rng.randrange(256)]),
            }
            state = {"recurrent": int(rng.random() < 0.5), "interval": rng.randint(1, 3), "logged": rng.randint(0, 3),
                     **{n: rng.randrange(256) for n in ("blocks", "snapshot")}}
            state = state if g.states else {}
            blocks = length(opcode, header["count"], g) if opcode in set(Opcode) else 0
            if state:
                blocks += opcode == Opcode.OPEN and header["flags"] == Flag.RECURRENT
                blocks = {Opcode.RECUR: state["blocks"], Opcode.RESTORE: state["snapshot"]}.get(opcode, blocks)
            header["blocks"] = blocks % (1 << 16) if rng.random() < 0.95 else rng.randrange(1 << 16)
            pages = rng.randint(0, g.pages_per_slot)
            rows = rng.randint(0, pages * g.page_rows)
            entry = {"open": int((rng.random() < 0.9) != (opcode == Opcode.OPEN)), "rows": rows, "pages": pages,
                     **state}
            ctx.set(dut.header, header)
            await ctx.tick()
            ctx.set(dut.entry, entry)
            await ctx.tick()
            status = expected(header, entry, g)
            seen.add(status)
            assert ctx.get(dut.status) == status, (header, entry)
            if status == Status.OK and opcode in ROWS:
                wide = opcode == Opcode.APPEND and header["flags"] & Flag.WIDE
                assert ctx.get(dut.added) == header["count"] * (2 if wide else 1)

    simulate(dut, bench)
    unseen = {Status.BAD_FRAME, Status.BAD_VERSION, Status.BAD_CRC, Status.BAD_PAGE, Status.BAD_VALUE}
    assert seen == set(Status) - unseen - (set() if g.states else {Status.WRONG_KIND, Status.LOGGED})
