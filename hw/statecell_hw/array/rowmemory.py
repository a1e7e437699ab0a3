"""The memory inside a bank."""

from __future__ import annotations

from amaranth.hdl import ClockSignal, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry

VERILOG_PLATFORM = "verilog"
"""Platform for which the memory is an instance of the module in :data:`VERILOG`."""
MODULE = "statecell_row_memory"
VERILOG = f"""\
module {MODULE} #(parameter WIDTH = 1, parameter DEPTH = 1, parameter ADDRESS = 1) (
  input clk,
  input write_en,
  input [ADDRESS-1:0] write_row,
  input [WIDTH-1:0] write_data,
  input read_en,
  input [ADDRESS-1:0] read_row,
  output reg [WIDTH-1:0] read_data
);
  reg [WIDTH-1:0] memory [0:DEPTH-1];
  always @(posedge clk) begin
    if (write_en) memory[write_row] <= write_data;
    if (read_en) read_data <= memory[read_row];
  end
endmodule
"""
"""What to append to the Verilog of a design that was converted for :data:`VERILOG_PLATFORM`."""


class RowMemory(wiring.Component):
    """Simple dual-port memory of ``rows`` rows; ``read_data`` is valid one cycle after ``read_en`` and then holds.

    A read in the cycle of a write to the same row returns the old row. The memory is not reset. For the platform
    ``"verilog"`` it is written in Verilog without initial values: Amaranth's own memories list the initial value of
    every row, which for 131,072 rows takes minutes and 70 MB.
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
            "write_en": In(1),
            "write_row": In(range(geometry.rows)),
            "write_data": In(geometry.row_bits),
            "read_en": In(1),
            "read_row": In(range(geometry.rows)),
            "read_data": Out(geometry.row_bits),
        })

    @property
    def latency(self) -> int:
        """Cycles from ``read_en`` to ``read_data``."""
        return 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        if platform == VERILOG_PLATFORM:
            m.submodules.memory = Instance(
                MODULE,
                p_WIDTH=g.row_bits, p_DEPTH=g.rows, p_ADDRESS=len(self.read_row),
                i_clk=ClockSignal(),
                i_write_en=self.write_en, i_write_row=self.write_row, i_write_data=self.write_data,
                i_read_en=self.read_en, i_read_row=self.read_row, o_read_data=self.read_data,
            )
            return m
        memory: Memory = Memory(shape=g.row_bits, depth=g.rows, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            write.en.eq(self.write_en), write.addr.eq(self.write_row), write.data.eq(self.write_data),
            read.en.eq(self.read_en), read.addr.eq(self.read_row), self.read_data.eq(read.data),
        ]
        return m
