"""Command processor: one command at a time, from its header to its completion."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats, frame
from statecell.spec.commands import CLEAR_COUNTERS, COUNTER_FIELDS, INFO_FIELDS, Opcode, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SESSION_BITS
from statecell_hw.control.checks import Checks, row_blocks, times
from statecell_hw.control.counters import COUNTER_BITS
from statecell_hw.control.responder import INFO_BITS, Answer, completion_layout
from statecell_hw.control.slots import slot_layout
from statecell_hw.link.deframer import REQUEST, STATUS_BITS
from statecell_hw.link.framer import RESPONSE
from statecell_hw.recurrent.opening import BLOCK_BITS
from statecell_hw.recurrent.operands import ENTRIES

BARRIER = (
    Opcode.COUNTERS, Opcode.RESET, Opcode.CONNECT, Opcode.FREE, Opcode.TRUNCATE, Opcode.READ_ROWS, Opcode.WRITE_ROWS,
)  # fmt: skip
"""Commands that begin only when everything before them is done and answered."""

SAID = data.StructLayout({"answer": Answer, "blocks": RESPONSE["blocks"].width, "value": RESPONSE["value"].width})
"""What the response of a command says if all goes well."""

RECURRENT_PORT = wiring.Signature({
    "opening": Out(1), "open_en": Out(1), "rows": In(16), "blocks": In(BLOCK_BITS), "outputs": In(BLOCK_BITS),
    "snapshot": In(BLOCK_BITS), "restoring": Out(1), "save": Out(1), "restore": Out(1), "logged": In(range(ENTRIES)),
    "interval": In(range(ENTRIES)), "commit": Out(1), "frozen": In(1),
    "recurring": Out(1), "token": Out(1), "token_ready": In(1), "accept": Out(1), "drop": Out(1),
    "quiet": In(1), "idle": In(1),
})
"""What the command processor and the recurrent unit have to do with each other.

`opening`: OPEN's mode block flows, which gives `rows`, `blocks`, `outputs`, `snapshot` and `interval`; `open_en`: the
slot is opened with it. `restoring`: RESTORE's payload flows, which gives `logged`; `save`, `restore`: the slot's state
is to be sent, or set.
`recurring`: a token's payload flows, which `token` began when it was `token_ready`; `accept` or `drop` ends it. Tokens
begin while no other command has anything under way in the tile, `quiet`, all others while the unit is `idle`.
`commit`: what begins is no token but a COMMIT; `frozen`: the token is not logged.
"""


class Command(wiring.Component):
    """Reads a header, checks it against its slot, has the payload handled, and commits after the frame's verdict.

    A header costs 5 cycles, an end of frame 1; the payload flows meanwhile at the pace of its unit. Nothing is
    committed unless the frame is good and every check passed; what units wrote by then lies beyond the slot's rows and
    pages, where nobody sees it. A command that fails its checks takes its payload unread. A bad frame's status wins.

    Members
    -------
    header, verdict: from the deframer.
    request: a copy of the header in work, stable from `begin` until the completion.
    entry: entry of its slot, likewise.
    tile, tile_slot: where its slot lives.
    reads: the command is READ_ROWS.
    begin: first cycle of the payload of a command that passed its header checks; `mapping`, `attending`, `appending`,
        `writing` name the unit that gets it, and are low for others.
    ended: the frame has ended; units that hold half a vector complete it.
    settled: no unit holds anything of this payload that must be finished before the commit.
    faulty: Status that the payload's content gave, OK if none.
    idle: everything before this command is done and answered.
    read_slot, read_entry, write_en, write_entry, clear_slots, slots_ready: slot table.
    attend_valid, attend_good, attend_ready, attend_sent: an ATTEND ended that had sent `attend_sent` queries.
    completion: responses.
    reading, read_busy: READ_ROWS begins; it, STATE or RESTORE goes on.
    capture, clear_counters: counters.
    connect: a CONNECT is carried out that names `session`, the one that runs.
    recurrent: RECURRENT_PORT, used with states only.
    """

    header: stream.Interface
    verdict: stream.Interface
    request: data.View
    entry: data.View
    tile: Signal
    tile_slot: Signal
    reads: Signal
    begin: Signal
    mapping: Signal
    attending: Signal
    appending: Signal
    writing: Signal
    ended: Signal
    settled: Signal
    faulty: Signal
    idle: Signal
    read_slot: Signal
    read_entry: data.View
    write_en: Signal
    write_entry: data.View
    clear_slots: Signal
    slots_ready: Signal
    attend_valid: Signal
    attend_good: Signal
    attend_ready: Signal
    attend_sent: Signal
    completion: stream.Interface
    reading: Signal
    read_busy: Signal
    capture: Signal
    clear_counters: Signal
    connect: Signal
    session: Signal
    recurrent: Any

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "header": In(stream.Signature(REQUEST)),
                "verdict": In(stream.Signature(STATUS_BITS)),
                "request": Out(REQUEST),
                "entry": Out(slot_layout(g)),
                "tile": Out(range(g.tiles)),
                "tile_slot": Out(range(g.tile_slots)),
                "reads": Out(1),
                "begin": Out(1),
                "mapping": Out(1),
                "attending": Out(1),
                "appending": Out(1),
                "writing": Out(1),
                "ended": Out(1),
                "settled": In(1),
                "faulty": In(STATUS_BITS),
                "idle": In(1),
                "read_slot": Out(range(g.slots)),
                "read_entry": In(slot_layout(g)),
                "write_en": Out(1),
                "write_entry": Out(slot_layout(g)),
                "clear_slots": Out(1),
                "slots_ready": In(1),
                "attend_valid": Out(1),
                "attend_good": Out(1),
                "attend_ready": In(1),
                "attend_sent": In(range(g.lanes + 1)),
                "completion": Out(stream.Signature(completion_layout(g))),
                "reading": Out(1),
                "read_busy": In(1),
                "capture": Out(1),
                "clear_counters": Out(1),
                "connect": Out(1),
                "session": In(SESSION_BITS),
                **({"recurrent": Out(RECURRENT_PORT)} if g.states else {}),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        m.submodules.checks = checks = Checks(g)
        opcode = self.request.opcode
        status = Signal(STATUS_BITS)  # of the header checks
        tile_bits = exact_log2(g.tiles)
        m.d.comb += [
            self.read_slot.eq(self.header.payload.slot),
            self.tile.eq(self.request.slot[:tile_bits]),
            self.tile_slot.eq(self.request.slot[tile_bits:]),
            self.reads.eq(opcode == Opcode.READ_ROWS),
            checks.header.eq(self.request),
            checks.entry.eq(self.entry),
        ]
        checked, ended, final = Signal(STATUS_BITS), Signal(STATUS_BITS), Signal(STATUS_BITS)
        good, commit = Signal(), Signal()
        running, waits = Signal(), Signal()
        said = self._said(m, checks.added, *self._sizes(m))
        m.d.comb += [
            checked.eq(Mux(status != Status.OK, status, self.faulty)),
            ended.eq(Mux(self.verdict.payload != Status.OK, self.verdict.payload, checked)),
        ]
        # nothing of it changes from the last cycle of the payload to the commit
        m.d.sync += [final.eq(ended), good.eq(ended == Status.OK)]
        units = {
            Opcode.MAP: self.mapping, Opcode.ATTEND: self.attending, Opcode.APPEND: self.appending,
            Opcode.WRITE_ROWS: self.writing,
        }
        if g.states:
            units |= {Opcode.OPEN: self.recurrent.opening, Opcode.RECUR: self.recurrent.recurring,
                      Opcode.RESTORE: self.recurrent.restoring}
            # an empty log is left as it is
            m.d.comb += self.recurrent.commit.eq((opcode == Opcode.COMMIT) & (self.entry.logged != 0))
        named = {code: Signal(name=f"is_{code.name.lower()}") for code in units}
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [status.eq(Status.OK), self.request.eq(self.header.payload)]
                with m.If(self.header.valid & self.slots_ready):
                    m.next = "ENTRY"
                with m.Elif(self.verdict.valid & self.slots_ready):
                    m.next = "END"
            with m.State("ENTRY"):
                m.d.sync += self.entry.eq(self.read_entry)
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += waits.eq(opcode.matches(*(int(o) for o in BARRIER)))
                m.d.sync += [flag.eq(opcode == code) for code, flag in named.items()]
                m.next = "STATUS"
            with m.State("STATUS"):
                m.d.sync += status.eq(checks.status)
                m.next = "BEGIN"
            with m.State("BEGIN"), m.If(self._may_begin(m, status, waits)):
                m.d.comb += [self.header.ready.eq(1), self.begin.eq(status == Status.OK)]
                m.d.sync += running.eq(status == Status.OK)
                m.d.sync += [unit.eq((status == Status.OK) & named[code]) for code, unit in units.items()]
                m.next = "PAYLOAD"
            with m.State("PAYLOAD"):
                m.d.comb += self.ended.eq(self.verdict.valid)
                with m.If(self.verdict.valid & self.settled):
                    m.next = "END"
                    # An ATTEND that sent no query leaves nothing to start or to forget.
                    with m.If(self.attending & (self.attend_sent != 0)):
                        m.next = "ATTEND"
            with m.State("ATTEND"):
                m.d.comb += [self.attend_valid.eq(1), self.attend_good.eq(good)]
                with m.If(self.attend_ready):
                    m.next = "END"
            with m.State("END"):
                m.d.comb += [self.completion.valid.eq(1), commit.eq(self.completion.ready)]
                self._completion(m, final, good & running, said)
                self._commit(m, commit & good & running, said.value)
                if g.states:
                    self._commit_state(m, commit & running, good)
                with m.If(commit):
                    m.d.sync += [running.eq(0), *(unit.eq(0) for unit in units.values())]
                    lasts = self.reads | (self.recurrent.save | self.recurrent.restore if g.states else 0)
                    with m.If(running & lasts & good):
                        m.next = "READ"
                    with m.Else():
                        m.d.comb += self.verdict.ready.eq(1)
                        m.next = "IDLE"
            with m.State("READ"):
                # The reader needs the request, which the deframer keeps until its verdict is taken.
                m.d.comb += self.verdict.ready.eq(~self.read_busy)
                with m.If(~self.read_busy):
                    m.next = "IDLE"
        return m

    def _may_begin(self, m: Module, status: Signal, waits: Signal) -> Value:
        """Whether the command may begin, or has failed its checks; a token begins with it."""
        may = ~waits | (status != Status.OK) | self.idle
        if not self.g.states:
            return may
        unit: Any = self.recurrent
        recurs = ((self.request.opcode == Opcode.RECUR) | unit.commit) & (status == Status.OK)
        m.d.comb += unit.token.eq(recurs & unit.quiet)
        return Mux(recurs, unit.token & unit.token_ready, may & ((status != Status.OK) | unit.idle))

    def _sizes(self, m: Module) -> tuple[Signal, Signal]:
        """Blocks of ATTEND's and of READ_ROWS' answers: counted in registers, long before they are needed."""
        g, count = self.g, self.request.count
        vector_blocks = g.head_dim * formats.VECTOR_BITS // 8 // frame.BLOCK
        vectors, rows = (Signal(REQUEST["blocks"].width, name=f"{name}_blocks") for name in ("attend", "read"))
        m.d.sync += [
            vectors.eq(times(count[: len(self.attend_sent)], vector_blocks) + 1),
            rows.eq(times(count[: len(self.entry.rows)], row_blocks(g))),
        ]
        return vectors, rows

    def _said(self, m: Module, added: Signal, vectors: Signal, rows: Signal) -> Any:
        """What the response of a command that went well says: kind and blocks of its payload, and its value.

        It adds `added` rows and has `vectors` or `rows` blocks, where it does. All is known when the command begins, so
        these are registers.
        """
        said: Any = Signal(SAID)
        answer, blocks, value = said.answer, said.blocks, said.value
        with m.If(~self.completion.valid):
            m.d.sync += said.as_value().eq(0)
            with m.Switch(self.request.opcode):
                with m.Case(Opcode.INFO):
                    m.d.sync += [answer.eq(Answer.INFO), blocks.eq(len(INFO_FIELDS) * INFO_BITS // 8 // frame.BLOCK)]
                with m.Case(Opcode.COUNTERS):
                    size = len(COUNTER_FIELDS) * COUNTER_BITS // 8 // frame.BLOCK
                    m.d.sync += [answer.eq(Answer.COUNTERS), blocks.eq(size)]
                with m.Case(Opcode.ATTEND):
                    m.d.sync += [answer.eq(Answer.VECTORS), blocks.eq(vectors)]
                with m.Case(Opcode.READ_ROWS):
                    m.d.sync += [answer.eq(Answer.ROWS), blocks.eq(rows)]
                if self.g.states:
                    with m.Case(Opcode.RECUR):
                        m.d.sync += [answer.eq(Answer.OUTPUTS), blocks.eq(self.entry.outputs)]
                    with m.Case(Opcode.STATE):
                        m.d.sync += [answer.eq(Answer.STATE), blocks.eq(self.entry.snapshot)]
                with m.Case(Opcode.MAP):
                    m.d.sync += value.eq(self.entry.pages + self.request.count)
                with m.Case(Opcode.TRUNCATE):
                    m.d.sync += value.eq(self.request.count)
                with m.Case(Opcode.APPEND, Opcode.WRITE_ROWS):
                    m.d.sync += value.eq(self.entry.rows + added)
                with m.Case(Opcode.CONNECT):
                    m.d.sync += value.eq(Mux(self.request.slot == self.session, self.request.first, self.session))
        return said

    def _completion(self, m: Module, final: Signal, done: Any, said: Any) -> None:
        """The response: its payload only if all went well."""
        header = self.completion.payload.header
        m.d.comb += [
            header.opcode.eq(self.request.opcode | frame.RESPONSE),
            header.sequence.eq(self.request.sequence),
            header.slot.eq(self.request.slot),
            header.status.eq(final),
            self.completion.payload.lanes.eq(self.request.count),
        ]
        with m.If(done):
            m.d.comb += [
                self.completion.payload.answer.eq(said.answer), header.blocks.eq(said.blocks),
                header.value.eq(said.value),
            ]


    def _commit(self, m: Module, commit: Any, value: Signal) -> None:
        """What a good command changes; `value` is its response's, the pages or rows that the slot has now."""
        opcode, count = self.request.opcode, self.request.count
        m.d.comb += self.write_entry.eq(self.entry)
        with m.Switch(opcode):
            with m.Case(Opcode.OPEN):
                m.d.comb += [self.write_entry.as_value().eq(0), self.write_entry.open.eq(1), self.write_en.eq(commit)]
            with m.Case(Opcode.FREE):
                m.d.comb += [self.write_entry.open.eq(0), self.write_en.eq(commit)]
            with m.Case(Opcode.MAP):
                m.d.comb += [self.write_entry.pages.eq(value), self.write_en.eq(commit)]
            with m.Case(Opcode.TRUNCATE, Opcode.APPEND, Opcode.WRITE_ROWS):
                m.d.comb += [self.write_entry.rows.eq(value), self.write_en.eq(commit)]
            with m.Case(Opcode.RESET):
                m.d.comb += [self.clear_slots.eq(commit), self.clear_counters.eq(commit)]
            with m.Case(Opcode.COUNTERS):
                m.d.comb += [self.capture.eq(commit), self.clear_counters.eq(commit & (count == CLEAR_COUNTERS))]
            with m.Case(Opcode.CONNECT):
                m.d.comb += self.connect.eq(commit & (self.request.slot == self.session))
            with m.Case(Opcode.READ_ROWS):
                m.d.comb += self.reading.eq(commit)

    def _commit_state(self, m: Module, ends: Any, good: Any) -> None:
        """What a command on a recurrent state changes."""
        g, unit = self.g, self.recurrent
        opens = (self.request.opcode == Opcode.OPEN) & self.request.flags.any()
        recurs = self.request.opcode == Opcode.RECUR
        m.d.comb += [
            unit.accept.eq(ends & good & (recurs | unit.commit)),
            unit.drop.eq(ends & ~good & (recurs | unit.commit)),
            unit.save.eq(ends & good & (self.request.opcode == Opcode.STATE)),
            unit.restore.eq(ends & good & (self.request.opcode == Opcode.RESTORE)),
            unit.open_en.eq(ends & good & opens),
        ]
        with m.If(opens):
            m.d.comb += [
                self.write_entry.recurrent.eq(1),
                self.write_entry.rows.eq(Mux(unit.rows > g.slot_rows, g.slot_rows, unit.rows)),
                self.write_entry.blocks.eq(unit.blocks), self.write_entry.outputs.eq(unit.outputs),
                self.write_entry.snapshot.eq(unit.snapshot), self.write_entry.interval.eq(unit.interval),
            ]
        with m.If(unit.restore):
            m.d.comb += [self.write_entry.logged.eq(unit.logged), self.write_en.eq(1)]
        with m.If(unit.accept):
            m.d.comb += [
                self.write_entry.logged.eq(Mux(unit.commit, 0, self.entry.logged + (
                    (self.entry.interval > 1) & ~unit.frozen))),
                self.write_en.eq(1),
            ]
