"""Memories as macros: no open library has them, so their size and their times are stated instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from statecell_hw.array.rowmemory import MODULE

CELL_F2 = 146
"""Area of a six-transistor cell in squares of the feature size: the model of CACTI 5 to 7 (HP Labs, technology.cc)."""
TWO_PORTS = 1.3
"""A cell of eight transistors with a read port of its own against one of six: Chang et al., "Stable SRAM cell design
for the 32 nm node and beyond", VLSI Symposium 2005."""
FEATURE_UM = 0.18
CELL_SHARE = 0.7
"""Share of a macro that is cells; the rest is decoders and sense amplifiers. An assumption."""
BIT_UM2 = round(CELL_F2 * FEATURE_UM**2 * TWO_PORTS / CELL_SHARE, 2)
"""Square micrometres of a macro for each of its bits."""
MACRO_BITS = 8192
"""Memories of fewer bits become flip-flops; those without a write port become gates."""

BLACK_BOX = f"""\
(* blackbox *)
module {MODULE} #(parameter WIDTH = 1, parameter DEPTH = 1, parameter ADDRESS = 1) (
  input clk, input write_en, input [ADDRESS-1:0] write_row, input [WIDTH-1:0] write_data,
  input read_en, input [ADDRESS-1:0] read_row, output [WIDTH-1:0] read_data
);
endmodule
"""
"""What the gateware's row memory is while memories are looked for."""

MEMORY_MAP = rf"""\
module \$mem_v2 (RD_CLK, RD_EN, RD_ARST, RD_SRST, RD_ADDR, RD_DATA, WR_CLK, WR_EN, WR_ADDR, WR_DATA);
  parameter MEMID = "";
  parameter signed SIZE = 1;
  parameter signed OFFSET = 0;
  parameter signed ABITS = 1;
  parameter signed WIDTH = 1;
  parameter INIT = 1'bx;
  parameter signed RD_PORTS = 1;
  parameter RD_CLK_ENABLE = 1'b1;
  parameter RD_CLK_POLARITY = 1'b1;
  parameter RD_TRANSPARENCY_MASK = 1'b0;
  parameter RD_COLLISION_X_MASK = 1'b0;
  parameter RD_WIDE_CONTINUATION = 1'b0;
  parameter RD_CE_OVER_SRST = 1'b0;
  parameter RD_ARST_VALUE = 1'b0;
  parameter RD_SRST_VALUE = 1'b0;
  parameter RD_INIT_VALUE = 1'b0;
  parameter signed WR_PORTS = 1;
  parameter WR_CLK_ENABLE = 1'b1;
  parameter WR_CLK_POLARITY = 1'b1;
  parameter WR_PRIORITY_MASK = 1'b0;
  parameter WR_WIDE_CONTINUATION = 1'b0;
  input [RD_PORTS-1:0] RD_CLK, RD_EN, RD_ARST, RD_SRST;
  input [RD_PORTS*ABITS-1:0] RD_ADDR;
  output [RD_PORTS*WIDTH-1:0] RD_DATA;
  input [WR_PORTS-1:0] WR_CLK;
  input [WR_PORTS*WIDTH-1:0] WR_EN, WR_DATA;
  input [WR_PORTS*ABITS-1:0] WR_ADDR;
  wire _TECHMAP_FAIL_ = WR_PORTS != 1 || !(&RD_CLK_ENABLE) || SIZE * WIDTH < {MACRO_BITS};
  genvar n;
  generate for (n = 0; n < RD_PORTS; n = n + 1) begin : port
    {MODULE} #(.WIDTH(WIDTH), .DEPTH(SIZE), .ADDRESS(ABITS)) macro (
      .clk(WR_CLK), .write_en(WR_EN[0]), .write_row(WR_ADDR), .write_data(WR_DATA),
      .read_en(RD_EN[n]), .read_row(RD_ADDR[n*ABITS +: ABITS]), .read_data(RD_DATA[n*WIDTH +: WIDTH])
    );
  end endgenerate
endmodule
"""
"""Yosys's memory cell as macros, one for each read port, all written alike."""


@dataclass(frozen=True, kw_only=True)
class MacroModel:
    """What is assumed of every macro: ``bit_um2`` square micrometres for each bit, data ``access_ns`` after the clock,
    inputs ``setup_ns`` before it. A macro has one write and one read port.
    """

    bit_um2: float = BIT_UM2
    access_ns: float = 2.5
    setup_ns: float = 0.5


@dataclass(frozen=True, kw_only=True, order=True)
class Macro:
    """One memory: ``rows`` words of ``width`` bits with addresses of ``address`` bits, in the module ``block``."""

    block: str
    width: int
    rows: int
    address: int

    @property
    def cell(self) -> str:
        """Name of the cell."""
        return f"statecell_memory_{self.rows}x{self.width}"

    @property
    def bits(self) -> int:
        """Bits that it holds."""
        return self.rows * self.width


def macros(dump: str) -> list[Macro]:
    """The memories of a design, from what Yosys's `dump` shows of the cells of type MODULE."""
    found, block, sizes = [], "", dict[str, int]()
    for line in dump.splitlines():
        words = line.split()
        if words[:1] == ["module"]:
            block = words[1].removeprefix("\\")
        elif words[:1] == ["parameter"]:
            sizes[words[-2].removeprefix("\\")] = int(words[-1])
        elif words[:1] == ["end"] and sizes:
            found.append(Macro(block=block, width=sizes["WIDTH"], rows=sizes["DEPTH"], address=sizes["ADDRESS"]))
            sizes = {}
    return sorted(found)


def liberty(kinds: Iterable[Macro], model: MacroModel, head: str) -> str:
    """A Liberty library of the macros' cells; ``head`` is the text of the cells' library, whose units are taken over.

    Delays do not depend on load or slope: what drives the load is not known either.
    """
    cells = {macro.cell: macro for macro in kinds}
    widths = sorted({size for macro in cells.values() for size in (macro.width, macro.address)})
    buses = [
        f"  type (bits_{n}) {{ base_type : array; data_type : bit; bit_width : {n}; bit_from : {n - 1}; bit_to : 0; "
        "downto : true; }"
        for n in widths
    ]
    body = [_cell(macro, model) for macro in cells.values()]
    return "\n".join(["library(statecell_memories) {", *_units(head), *buses, *body, "}", ""])


def _units(head: str) -> list[str]:
    names = r"delay_model|\w+_unit|\w+_threshold_pct_\w+|nom_\w+"
    lines = re.findall(rf"^\s*((?:{names})\s*:[^;]*;|capacitive_load_unit[^;]*;)", head, re.MULTILINE)
    return [f"  {line}" for line in lines]


def _cell(macro: Macro, model: MacroModel) -> str:
    setup = (
        'timing () { related_pin : "clk"; timing_type : setup_rising; '
        + "".join(f'{edge}_constraint (scalar) {{ values ("{model.setup_ns}"); }} ' for edge in ("rise", "fall")) + "}"
    )
    access = 'timing () { related_pin : "clk"; timing_type : rising_edge; ' + "".join(
        f'cell_{edge} (scalar) {{ values ("{model.access_ns}"); }} '
        f'{edge}_transition (scalar) {{ values ("{_SLOPE_NS}"); }} ' for edge in ("rise", "fall")
    ) + "}"
    taken = f"direction : input; capacitance : {_LOAD_PF}; {setup}"
    return "\n".join([
        f"  cell ({macro.cell}) {{",
        f"    area : {macro.bits * model.bit_um2:.1f};",
        f"    pin (clk) {{ direction : input; clock : true; capacitance : {_LOAD_PF}; }}",
        *(f"    pin ({name}) {{ {taken} }}" for name in ("write_en", "read_en")),
        *(f"    bus ({name}) {{ bus_type : bits_{size}; {taken} }}"
          for name, size in (("write_row", macro.address), ("write_data", macro.width), ("read_row", macro.address))),
        f"    bus (read_data) {{ bus_type : bits_{macro.width}; direction : output; {access} }}",
        "  }",
    ])


_SLOPE_NS = 0.2
_LOAD_PF = 0.02
"""About two inputs of the library."""
