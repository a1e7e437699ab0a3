"""Jobs of the vectors that the row writer holds, one for each buffer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out


class JobQueue(wiring.Component):
    """Ring of ``depth`` jobs with three readers, in the order of the stages that a vector passes.

    ``loading``, ``scaling`` and ``issuing`` are the jobs of the oldest vectors that have not passed these stages, and
    ``*_index`` their buffers; the strobes ``loaded``, ``scaled`` and ``issued`` move on to the next vector, the last
    one frees the job too. A stage must not use a job that is not accepted yet. ``i`` takes a job while one is free;
    ``empty``: no job is held. Latency 1, interval 1; ``scaling`` and ``issuing`` come from registers and a cycle later,
    and neither ``scaled`` nor ``issued`` may come in adjacent cycles. Reset forgets all jobs. ``depth`` is a power of
    two.
    """

    i: stream.Interface
    empty: Signal
    loaded: Signal
    scaled: Signal
    issued: Signal
    loading: Any
    scaling: Any
    issuing: Any
    loading_index: Signal
    scaling_index: Signal
    issuing_index: Signal

    def __init__(self, layout: data.StructLayout, *, depth: int) -> None:
        self.layout = layout
        self.depth = depth
        super().__init__({
            "i": In(stream.Signature(layout)),
            "empty": Out(1),
            **{name: In(1) for name in ("loaded", "scaled", "issued")},
            **{name: Out(layout) for name in ("loading", "scaling", "issuing")},
            **{f"{name}_index": Out(range(depth)) for name in ("loading", "scaling", "issuing")},
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        slots: list[Any] = [Signal(self.layout, name=f"slot_{b}", reset_less=True) for b in range(self.depth)]
        held = Signal(range(self.depth + 1))
        write = Signal(range(self.depth))
        accepted = Signal()
        m.d.comb += [
            self.i.ready.eq(held != self.depth),
            accepted.eq(self.i.valid & self.i.ready),
            self.empty.eq(held == 0),
        ]
        m.d.sync += held.eq(held + accepted - self.issued)
        with m.If(accepted):
            m.d.sync += write.eq(write + 1)
            with m.Switch(write):
                for b, slot in enumerate(slots):
                    with m.Case(b):
                        m.d.sync += slot.eq(self.i.payload)
        with m.If(self.loaded):
            m.d.sync += self.loading_index.eq(self.loading_index + 1)
        m.d.comb += self.loading.eq(self._choice(m, slots, self.loading_index, "loading"))
        for name, passed, index, job in (
            ("scaling", self.scaled, self.scaling_index, self.scaling),
            ("issuing", self.issued, self.issuing_index, self.issuing),
        ):
            with m.If(passed):
                m.d.sync += index.eq(index + 1)
            following: Any = Signal(self.layout, name=f"{name}_following", reset_less=True)
            m.d.sync += [
                following.eq(self._choice(m, slots, (index + 1)[:len(index)], f"{name}_after")),
                job.eq(Mux(passed, following, self._choice(m, slots, index, name))),
            ]
        return m

    def _choice(self, m: Module, slots: list[Any], index: Value, name: str) -> Any:
        chosen: Any = Signal(self.layout, name=f"{name}_slot")
        with m.Switch(index):
            for b, slot in enumerate(slots):
                with m.Case(b):
                    m.d.comb += chosen.eq(slot)
        return chosen
