"""Gateware blocks as Verilog for the benches, and benches that must fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from amaranth.back import verilog
from amaranth.lib import wiring

from statecell_sim.runner import BenchFailure, run_bench


def emit(component: wiring.Component) -> str:
    """Verilog without source lines, so that the compiled bench outlives a change of comments."""
    return str(verilog.convert(component, name="statecell", emit_src=False, strip_internal_attrs=True))


def run_mutant(
    design: str,
    bench: str,
    test: str,
    case: str,
    change: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    match: str,
) -> None:
    """Run the case of a bench's test with the model changed by the statements `change`: it must fail and say `match`.

    The design is the compiled one of the bench itself.
    """
    name = f"mutant_{bench}"
    (folder / f"{name}.py").write_text(f"from statecell_sim.benches.{bench} import {test}\n{change}\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(BenchFailure, match=match):
        run_bench(design, name, testcases=[test + case])
