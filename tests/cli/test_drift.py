"""`statecell drift`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evaluate.test_capture import hybrid
from tests.small_folder import WORDS, make_folder

Run = Callable[..., tuple[int, str, str]]
SHORT = ("drift", "--tokens", "256", "--decays", "0.9,0.999", "--channels", "2", "--modes", "int4,naive-int8,default")


def test_json_and_plot(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*SHORT, "-o", str(tmp_path / "drift"), "--json")
    result = json.loads(out)
    assert code == 0 and "synthetic" in result["inputs"] and (result["tokens"], result["seed"]) == (256, 0)
    assert [line["mode"] for line in result["modes"]] == ["int4", "naive-int8", "default"]
    assert len(result["heads"]) == 6 and set(result["heads"][0]["read_error"]) == {"32", "64", "128", "256"}
    assert [Path(file).name for file in result["files"]] == ["drift.png", "drift.svg"]
    assert (tmp_path / "drift.svg").read_text().count("naive-int8") == 1
    assert json.loads(run(*SHORT, "--json")[1])["heads"] == result["heads"], "the same seed, the same figures"


def test_tables_name_the_inputs(run: Run) -> None:
    code, out, _ = run(*SHORT)
    assert code == 0 and "inputs: seeded synthetic tokens" in out and "spectral radius" in out and "4.25" in out


def test_bad_input_is_one_sentence(run: Run) -> None:
    for arguments, message in ((("--decays", "fast"), "not a list of decays"), (("--modes", "int3"), "no storage mode"),
                               (("--tokens", "9"), "too few"), (("--family", "lstm"), "no family"),
                               (("--decays", "1.5"), "at most 1")):
        code, out, error = run("drift", *arguments)
        assert (code, out) == (2, "") and message in error and error.count("\n") == 1


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A random hybrid model beside the small model's tokenizer."""
    path = make_folder(tmp_path / "hybrid")
    hybrid().save_pretrained(path)
    return str(path)


def test_tokens_of_a_model(run: Run, folder: str, model_folder: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS[(i * i) % len(WORDS)] for i in range(300)))
    common = ("drift", "--tokens", "256", "--modes", "int8", "--text", str(text), "--json")
    result = json.loads(run(*common, "-m", folder, "--channels", "2")[1])
    assert "hybrid on" in result["inputs"] and len(result["heads"]) == 6
    assert all(0 < head["read_error"]["256"] < 0.2 for head in result["heads"])
    code, _, error = run(*common, "-m", model_folder)
    assert code == 2 and "no Gated DeltaNet layers" in error and error.count("\n") == 1
