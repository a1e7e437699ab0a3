from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statecell.spec.fingerprint import fingerprint
from statecell.spec.geometry import Geometry, GeometryError, config
from statecell_hw import emit

G = Geometry(name="least", head_dim=32, rows=16, lanes=1, slots=1, pages_per_slot=2, page_rows=8, link_bytes=4)


def test_the_same_sources_give_the_same_bytes() -> None:
    """In another process, with other hashes of strings, as on another machine."""
    code = (
        "import sys; from statecell.spec.geometry import Geometry; from statecell_hw.emit import emit_verilog; "
        f"sys.stdout.write(emit_verilog(Geometry(**{G.as_dict()})))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert other.returncode == 0, other.stderr
    text = emit.emit_verilog(G)
    assert text == other.stdout
    assert "module statecell(" in text
    for port in ("clk", "rst", "i__payload", "i__valid", "i__ready", "o__payload", "o__valid", "o__ready"):
        assert port in text[: text.index(";")]
    assert str(Path.cwd()) not in text
    assert ".py" not in text


def test_parameters_describe_the_device() -> None:
    found = json.loads(json.dumps(emit.parameters("tiny")))
    g = config("tiny")
    assert found["geometry"] == g.as_dict()
    assert found["derived"]["row_bits"] == g.row_bits
    assert found["fingerprint"] == f"{fingerprint():08x}"
    assert int(found["build_hash"], 16) == emit.build_hash(g) < 1 << 64


def test_the_build_hash_depends_on_the_geometry() -> None:
    assert emit.build_hash(config("tiny")) == emit.build_hash(config("tiny"))
    assert emit.build_hash(config("tiny")) != emit.build_hash(config("tiny2"))


def test_an_unknown_configuration_is_named() -> None:
    with pytest.raises(GeometryError, match="there is no configuration 'huge'; choose one of tiny"):
        emit.emit_verilog("huge")


def test_the_command_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "emit_verilog", lambda name: f"// {name}\n")
    folder = tmp_path / "new" / "folder"
    result = CliRunner().invoke(emit.app, ["--config", "tiny", "-o", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    assert (folder / "statecell.v").read_text() == "// tiny\n"
    assert json.loads((folder / "parameters.json").read_text()) == emit.parameters("tiny")
    assert json.loads(result.stdout)["files"] == [str(folder / "statecell.v"), str(folder / "parameters.json")]


def test_a_file_in_place_of_the_folder_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "emit_verilog", lambda _: pytest.fail("emitted in vain"))
    (tmp_path / "file").write_text("mine")
    result = CliRunner().invoke(emit.app, ["--config", "tiny", "-o", str(tmp_path / "file")])
    assert isinstance(result.exception, emit.EmitError) and "is a file: give --output a folder" in str(result.exception)
    assert (tmp_path / "file").read_text() == "mine"
