"""The specification: geometries, tables in documents, fingerprint, imports."""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from statecell.spec import commands, fingerprint, formats, frame, tables
from statecell.spec.geometry import CONFIGS, GeometryError, config

ROOT = Path(__file__).parents[2]
SOURCES = {"statecell": "sw", "statecell_hw": "hw", "statecell_sim": "sim", "statecell_boards": "boards"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("head_dim", 48), ("lanes", 0), ("lanes", 17), ("rows", 63), ("tiles", 3), ("group", 24), ("page_rows", 1),
     ("slots", 0), ("pages_per_slot", 3), ("link_bytes", 3), ("query_bits", 13), ("clock_hz", -1)],
)
def test_a_bad_geometry_is_named(field: str, value: int) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(GeometryError, match=field):
        dataclasses.replace(config("tiny"), **changed)


@pytest.mark.parametrize(
    ("field", "value"),
    [("head_dim", 64), ("lanes", 5), ("rows", 4096), ("tiles", 2), ("group", 16), ("slots", 65),
     ("slot_rows", 64), ("pages_per_slot", 128), ("link_bytes", 4), ("zero_point", True)],
)
def test_a_geometry_that_is_too_much_for_a_small_device_is_named(field: str, value: int) -> None:
    changed: dict[str, Any] = {"pages_per_slot" if field == "slot_rows" else field: value}
    if field == "pages_per_slot":
        changed["page_rows"] = 2
    dataclasses.replace(config("icebreaker"), small=False, **changed)
    with pytest.raises(GeometryError, match=f"^{field} is .* a small device has"):
        dataclasses.replace(config("icebreaker"), **changed)


def test_unknown_configuration_names_the_known() -> None:
    with pytest.raises(GeometryError, match="smollm2"):
        config("huge")


def test_bits_per_element() -> None:
    assert CONFIGS["smollm2"].bits_per_element == 4.25
    assert dataclasses.replace(CONFIGS["tiny2"], zero_point=False).bits_per_element == 4.25


def test_documents_are_current() -> None:
    for document in (ROOT / "docs").glob("*.md"):
        text = document.read_text(encoding="utf-8")
        assert tables.render(text) == text, f"{document.name} is out of date; run `make docs`"


def test_a_stale_table_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "x.md"
    document.write_text("<!-- table: flags -->\nold\n<!-- end -->\n", encoding="utf-8")
    assert tables.main(["--check", str(document)]) == 1 and "x.md" in capsys.readouterr().err
    assert tables.main([str(document)]) == 0 and tables.main(["--check", str(document)]) == 0


def test_headers_fill_their_block() -> None:
    for layout in (frame.REQUEST_HEADER, frame.RESPONSE_HEADER):
        covered = [b for f in layout for b in range(f.offset, f.offset + f.width)]
        assert covered == list(range(frame.BLOCK))


def test_command_table_is_complete() -> None:
    assert [c.opcode for c in commands.COMMANDS] == list(commands.Opcode)
    assert set(commands.STATUS_TEXT) == set(commands.Status)


def test_fingerprint_follows_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.fingerprint()
    monkeypatch.setattr(formats, "LOOKAHEAD", formats.LOOKAHEAD + 1)
    assert fingerprint.fingerprint() != before


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def allowed(module: str, package: str, inner: str) -> bool:
    top = module.partition(".")[0]
    if top == "tests":
        return False
    if package == "statecell":
        if top in {*SOURCES, "amaranth", "cocotb", "cocotb_tools"} - {"statecell"}:
            return False
        if inner == "spec":
            return top in sys.stdlib_module_names or module.startswith("statecell.spec")
        if inner == "model":
            return top != "statecell" or module.startswith(("statecell.spec", "statecell.model"))
        return True
    if package == "statecell_hw":
        return top not in SOURCES or top == package or module.startswith(("statecell.spec", "statecell.errors"))
    if package == "statecell_boards":
        return top != "statecell_sim"
    return True


def test_import_law() -> None:
    for package, folder in SOURCES.items():
        base = ROOT / folder / package
        for path in base.rglob("*.py"):
            inner = path.relative_to(base).parts[0]
            for module in imports(path):
                assert allowed(module, package, inner), f"{path.relative_to(ROOT)} must not import {module}"


@pytest.mark.parametrize(
    ("module", "package", "inner"),
    [("torch", "statecell", "spec"), ("amaranth.hdl", "statecell", "device.py"),
     ("statecell.model", "statecell_hw", "top.py"), ("statecell.runtime", "statecell", "model"),
     ("statecell_sim", "statecell_boards", "x.py"), ("tests", "statecell_sim", "x")],
)
def test_import_law_can_fail(module: str, package: str, inner: str) -> None:
    assert not allowed(module, package, inner)
