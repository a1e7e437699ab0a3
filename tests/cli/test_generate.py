from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]
PROMPT = "the sea was grey"


def test_json_is_alone_on_stdout(run: Run, model_folder: str) -> None:
    code, out, error = run("generate", PROMPT, "-m", model_folder, "-d", "model:tiny", "--tokens", "4", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["prompt"], report["cache"], report["device"], report["tokens"]) == (PROMPT, "int4", "model:tiny", 4)
    assert "cache format int4" in error


@pytest.mark.parametrize(("cache", "device"), [("fp16", "host"), ("int8", "model:tiny")])
def test_text_and_table(run: Run, model_folder: str, cache: str, device: str) -> None:
    code, out, error = run("generate", PROMPT, "-m", model_folder, "-d", "model:tiny", "-c", cache, "-n", "4")
    assert code == 0
    assert out.startswith(PROMPT)
    for name in ("tokens/s", "time to first token", "bits per cached element", "float model ranks first"):
        assert name in out
    assert f"cache format {cache}, device {device}" in error


def test_an_unknown_format_is_refused(run: Run, model_folder: str) -> None:
    code, _, error = run("generate", PROMPT, "-m", model_folder, "--cache", "int3")
    assert code == 2 and "fp16" in error and "int4" in error


def test_an_unknown_device_is_refused(run: Run, model_folder: str) -> None:
    code, out, error = run("generate", PROMPT, "-m", model_folder, "--device", "tape:")
    assert code == 2 and out == "" and "tape:" in error and "Traceback" not in error


def test_chat_goes_on_until_an_empty_line(run: Run, model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the sea was grey\nit rained\n\n"))
    code, _, error = run("chat", "-m", model_folder, "-d", "model:tiny", "-n", "3")
    assert code == 0
    assert error.count("in the cache]") == 2


def test_info(run: Run) -> None:
    facts = json.loads(run("info", "-d", "model:smollm2", "--json")[1])
    assert (facts["head_dim"], facts["lanes"], facts["bits_per_element"]) == (64, 3, 4.25)
    assert "bits_per_element" in run("info", "-d", "model:smollm2")[1]
