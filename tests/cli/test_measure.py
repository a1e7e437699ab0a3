"""`eval`, `bench` and `report` on a small model and the integer engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.small_folder import WORDS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS[(i * i) % len(WORDS)] for i in range(400)))
    return str(path)


def test_perplexity(run: Run, model_folder: str, text: str) -> None:
    common = ("eval", "ppl", "-m", model_folder, "--text", text, "-d", "model:tiny", "--tokens", "64", "--window", "32")
    _, out, error = run(*common, "--json")
    row = json.loads(out)
    assert error == ""  # neither bars nor a warning that the text is longer than the model's context
    assert (row["cache"], row["tokens"], row["window"], row["device"]) == ("int4", 64, 32, "model:tiny")
    assert row["bits_per_element"] == pytest.approx(4.25 * 33 / 32)
    assert row["increase"] == pytest.approx(row["ppl"] / row["ppl_reference"] - 1)
    code, out, _ = run(*common, "-c", "float", "-c", "naive-int4", "-c", "int8")
    assert code == 0 and "naive-int4" in out and "8.5" in out


def test_rows_from_elsewhere_join_the_table(run: Run, model_folder: str, text: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps([{"cache": "theirs", "ppl": 12, "ppl_reference": 10, "bits_per_element": 4.5}]))
    common = ("eval", "ppl", "-m", model_folder, "--text", text, "--tokens", "32", "--window", "32", "-c", "float")
    rows = json.loads(run(*common, "--also", str(other), "--json")[1])
    assert [row["cache"] for row in rows] == ["float", "theirs"]
    assert rows[0]["increase"] == pytest.approx(0, abs=1e-6) and rows[1]["increase"] == pytest.approx(0.2)
    other.write_text("[{}]")
    assert run(*common, "--also", str(other))[0] == 2


def test_bad_lengths_are_refused(run: Run, model_folder: str, text: str) -> None:
    common = ("eval", "ppl", "-m", model_folder, "--text", text, "-c", "float")
    code, _, error = run(*common, "--tokens", "100", "--window", "64")
    assert code == 2 and "a multiple of it" in error
    code, _, error = run(*common, "--tokens", "512", "--window", "64")
    assert code == 2 and "has only 400 tokens" in error


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("ppl --window 7", "a multiple of it"),
        ("ppl --cache int3", "'int3' is not known: use one of float, fp16, naive-int4, int8, int4"),
        ("ppl --device tape:", "'tape:' is not the address of a device"),
        ("datapath --window 7", "a multiple of it"),
        ("datapath --config huge", "no configuration 'huge'"),
        ("agreement --prompts 0", "at least 1 of each"),
        ("agreement --device tape:", "'tape:' is not the address of a device"),
        ("equality --device tape:", "'tape:' is not the address of a device"),
    ],
)
def test_arguments_are_refused_before_the_model_is_loaded(run: Run, arguments: str, reason: str) -> None:
    code, out, error = run("eval", *arguments.split(), "--model", "no-such-model", "--text", "no-such-text")
    assert (code, out) == (2, "") and reason in error and error.count("\n") == 1


def test_equality_refuses_what_the_text_or_the_context_cannot_give(run: Run, model_folder: str, text: str) -> None:
    common = ("eval", "equality", "-m", model_folder, "--text", text, "-d", "model:tiny")
    assert "the model's context is 256" in run(*common, "--prompt-tokens", "250", "-n", "7")[2]
    Path(text).write_text("the sea was grey")
    assert "has only 4 tokens and 5 are wanted" in run(*common, "--prompt-tokens", "5")[2]
    assert json.loads(run(*common, "--prompt-tokens", "4", "-n", "2", "--json")[1])["different"] == 0


def test_calibration_is_refused_first_where_it_cannot_be_kept(
    run: Run, model_folder: str, text: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statecell.runtime.calibration.calibrate", lambda *_, **__: pytest.fail("worked in vain"))
    cache.write_text("")
    code, out, error = run("calibrate", "-m", model_folder, "--text", text, "--tokens", "64")
    assert (code, out) == (2, "") and f"({cache / 'calibrations'}): Not a directory" in error


def test_agreement(run: Run, model_folder: str, text: str) -> None:
    result = json.loads(
        run(
            *("eval", "agreement", "-m", model_folder, "--text", text, "-d", "model:tiny", "--prompts", "2"),
            *("--prompt-tokens", "8", "--tokens", "6", "--json"),
        )[1]
    )
    assert (result["prompts"], result["tokens"]) == (2, 6)
    assert [row["first_token"] for row in result["per_prompt"]] == [0, 200]
    assert 0 <= result["top1"] <= 1 and result["mean_logit_difference"] > 0
    assert 0 <= result["identical_prefix"] <= 6


def test_bench_model(run: Run, model_folder: str) -> None:
    result = json.loads(
        run("bench", "model", "-m", model_folder, "-d", "model:tiny", "--context", "12", "-n", "4", "--json")[1]
    )
    assert (result["context"], result["tokens"], result["cycles_per_token"]) == (12, 4, None)
    assert result["slowdown"] == pytest.approx(result["float_tokens_per_s"] / result["tokens_per_s"])
    # Mean of 11, 12, 13 and 14 tokens, one row more for the first: keys and values, 2 layers, 2 KV heads, 17 bytes.
    assert result["bytes_per_token"] == (12.5 + 1) * 2 * 4 * 17


def test_bench_attention_wants_numbers(run: Run) -> None:
    code, _, error = run("bench", "attention", "--rows", "64,many")
    assert code == 2 and "--rows" in error and "64,many" in error
    code, _, error = run("bench", "attention", "--head-dim", "48")
    assert code == 2 and "use one of 32, 64, 128" in error


def test_report_draws_what_is_measured(run: Run, tmp_path: Path) -> None:
    quality = [{"cache": "int4", "bits_per_element": 4.25, "ppl": 30.9, "ppl_reference": 29.9}]
    elsewhere = [{"cache": "theirs q4", "bits_per_element": 4.5, "ppl": 31.5, "ppl_reference": 29.93}]
    cycles = [
        {"rows": rows, "queries": queries, "latency_cycles": rows + 100, "interval_cycles": rows + 8}
        for rows in (64, 256)
        for queries in (1, 3)
    ]
    for name, rows in (("perplexity", quality), ("perplexity-elsewhere", elsewhere), ("attention", cycles)):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    files = json.loads(run("report", "-o", str(tmp_path), "--json")[1])["files"]
    assert [Path(file).name for file in files] == ["perplexity.png", "perplexity.svg", "attention.png", "attention.svg"]
    drawing = (tmp_path / "perplexity.svg").read_text()
    assert "theirs q4  +5.2 %" in drawing and "int4  +3.3 %" in drawing
    assert "ideal: one row a cycle" in (tmp_path / "attention.svg").read_text()
    before = {file: Path(file).read_bytes() for file in files}
    run("report", "-o", str(tmp_path))
    assert {file: Path(file).read_bytes() for file in files} == before
    (tmp_path / "attention.json").write_text("{")
    code, _, error = run("report", "-o", str(tmp_path))
    assert code == 2 and "are not JSON" in error
