"""The memory inside a bank."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, ClockSignal, Instance, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import hold

VERILOG_PLATFORM = "verilog"
"""Platform for which the memory is an instance of the module in :data:`VERILOG`."""
MODULE = "statecell_row_memory"
VERILOG = f"""\
module {MODULE} #(parameter WIDTH = 1, parameter DEPTH = 1, parameter ADDRESS = 1) (
  input clk,
  input write_en,
  input [ADDRESS-1:0] write_row,
  input [WIDTH-1:0] write_data,
  input [ADDRESS-1:0] read_row,
  output reg [WIDTH-1:0] read_data
);
  reg [WIDTH-1:0] memory [0:DEPTH-1];
  always @(posedge clk) begin
    if (write_en) memory[write_row] <= write_data;
    read_data <= memory[read_row];
  end
endmodule
"""
"""What to append to the Verilog of a design that was converted for :data:`VERILOG_PLATFORM`."""


SEGMENT_ROWS = 2048
"""Most rows of one segment: the depth of an FPGA's block RAM at about a byte a block."""

SINGLE = 2
"""Latency of a single segment: memory, register."""


def segments(geometry: Geometry) -> int:
    """Segments that the rows lie in."""
    return -(-geometry.rows // SEGMENT_ROWS)


def enables(strobe: Value, row: Value, geometry: Geometry) -> Value:
    """``strobe`` for the segment of ``row``: a bit for each."""
    return Cat(strobe & (row[ceil_log2(SEGMENT_ROWS):] == part) for part in range(segments(geometry)))


class RowMemory(wiring.Component):
    """Simple dual-port memory of ``rows`` rows; ``read_data`` is that of ``latency`` cycles after ``read_en``.

    ``write_en`` has a bit for each segment (:func:`enables`): the choice among them can lie before a register, and the
    way to block RAMs at the chip's edges is long.
    A read in the cycle of a write to the same row returns the old row in simulation; no pass makes one, and block RAM
    leaves it open (``boards/statecell_boards/bitstream.py``). The memory is not reset. Rows lie in segments of
    SEGMENT_ROWS, each with a register behind it, and more than one are selected into another: a block RAM is too slow
    to have a choice of depth behind it in the same cycle. For the platform ``"verilog"`` the memory is one, written in
    Verilog without initial values: Amaranth's own memories list the initial value of every row, which for 131,072 rows
    takes minutes and 70 MB.
    """

    write_en: Signal
    write_row: Signal
    write_data: Signal
    read_en: Signal
    read_row: Signal
    read_data: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "write_en": In(segments(geometry)),
            "write_row": In(range(geometry.rows)),
            "write_data": In(geometry.row_bits),
            "read_en": In(1),
            "read_row": In(range(geometry.rows)),
            "read_data": Out(geometry.row_bits),
        })

    @property
    def latency(self) -> int:
        """Cycles from ``read_en`` to ``read_data``: memory, its register, and the selection."""
        return SINGLE if segments(self.geometry) == 1 else SINGLE + 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        whole = platform == VERILOG_PLATFORM
        parts = 1 if whole else segments(g)
        within = len(self.read_row) if parts == 1 else ceil_log2(SEGMENT_ROWS)
        reads, segment = [self.read_en], [self.read_row[within:]]
        for stage in range(1, self.latency):
            reads.append(Signal(name=f"read_{stage}"))
            segment.append(Signal.like(segment[0], name=f"segment_{stage}", reset_less=True))
            m.d.sync += reads[stage].eq(reads[stage - 1])
            with m.If(reads[stage - 1]):
                m.d.sync += segment[stage].eq(segment[stage - 1])
        held = []
        for part in range(parts):
            data = Signal(g.row_bits, name=f"data_{part}")
            write_en = Signal(name=f"write_en_{part}")
            m.d.comb += write_en.eq(self.write_en.any() if whole else self.write_en[part])
            write_row, read_row = self.write_row[:within], self.read_row[:within]
            if whole:
                m.submodules.memory = Instance(
                    MODULE,
                    p_WIDTH=g.row_bits, p_DEPTH=g.rows, p_ADDRESS=len(self.read_row),
                    i_clk=ClockSignal(),
                    i_write_en=write_en, i_write_row=write_row, i_write_data=self.write_data,
                    i_read_row=read_row, o_read_data=data,
                )
            else:
                depth = min(SEGMENT_ROWS, g.rows - part * SEGMENT_ROWS)
                memory: Memory = Memory(shape=g.row_bits, depth=depth, init=[])
                m.submodules[f"memory_{part}"] = memory
                write, read = memory.write_port(), memory.read_port()
                m.d.comb += [
                    write.en.eq(write_en), write.addr.eq(write_row), write.data.eq(self.write_data),
                    read.addr.eq(read_row), data.eq(read.data),
                ]
            held += hold(m, reads[1], [data], f"held_{part}")
        if self.latency == SINGLE:
            m.d.comb += self.read_data.eq(held[0])
        else:
            chosen = Array(held)[segment[2]] if parts > 1 else held[0]
            m.d.comb += self.read_data.eq(hold(m, reads[2], [chosen], "chosen")[0])
        return m
