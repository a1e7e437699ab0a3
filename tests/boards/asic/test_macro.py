from __future__ import annotations

import pytest

from statecell_boards.asic.macro import BIT_UM2, Macro, MacroModel, liberty, macros

DUMP = """
autoidx 7

attribute \\generator "Amaranth"
module \\tile.keys.memory

  cell \\statecell_row_memory \\memory
    parameter \\WIDTH 272
    parameter \\DEPTH 131072
    parameter \\ADDRESS 17
    connect \\clk \\clk
  end
end

module \\tile.rowstream

  cell \\statecell_row_memory \\table.port[0].macro
    parameter \\ADDRESS 15
    parameter \\WIDTH 13
    parameter \\DEPTH 32768
  end

  cell \\statecell_row_memory \\table.port[1].macro
    parameter \\ADDRESS 15
    parameter \\WIDTH 13
    parameter \\DEPTH 32768
  end
end
"""
ROWS = Macro(block="tile.keys.memory", width=272, rows=131072, address=17)
TABLE = Macro(block="tile.rowstream", width=13, rows=32768, address=15)
HEAD = """library(cells) {
  time_unit : "1ns";
  capacitive_load_unit (1,pf);
  input_threshold_pct_rise : 50;
  cell (X) { area : 3; }
}
"""


def test_the_memories_of_a_design() -> None:
    assert macros(DUMP) == [ROWS, TABLE, TABLE]
    assert macros("autoidx 7\n") == []


def test_the_size_of_a_bit() -> None:
    """146 squares of 0.18 um, 1.3 times for the second port, 70 % of the macro."""
    assert pytest.approx(146 * 0.18 * 0.18 * 1.3 / 0.7, abs=0.005) == BIT_UM2


def test_a_library_of_macros() -> None:
    text = liberty([ROWS, TABLE, TABLE], MacroModel(bit_um2=2.0, access_ns=3.25, setup_ns=0.75), HEAD)
    assert text.count("cell (statecell_memory_") == 2
    assert "cell (statecell_memory_131072x272) {\n    area : 71303168.0;" in text
    assert 'time_unit : "1ns";' in text and "capacitive_load_unit (1,pf);" in text and "cell (X)" not in text
    assert "bus (write_data) { bus_type : bits_272;" in text and "bus (read_row) { bus_type : bits_15;" in text
    assert text.count('cell_rise (scalar) { values ("3.25"); }') == 2
    assert text.count('rise_constraint (scalar) { values ("0.75"); }') == 2 * 5
    assert text.count("{") == text.count("}")
