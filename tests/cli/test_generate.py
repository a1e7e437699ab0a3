from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from transformers import AutoTokenizer

from statecell.cli import output

Run = Callable[..., tuple[int, str, str]]
PROMPT = "the sea was grey"


def test_json_is_alone_on_stdout(run: Run, model_folder: str) -> None:
    code, out, error = run("generate", PROMPT, "-m", model_folder, "-d", "model:tiny", "--tokens", "4", "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["prompt"], report["cache"], report["device"], report["tokens"]) == (PROMPT, "int4", "model:tiny", 4)
    assert "cache format int4" in error


def test_json_holds_the_token_ids(run: Run, model_folder: str) -> None:
    report = json.loads(run("generate", PROMPT, "-m", model_folder, "-d", "model:tiny", "--tokens", "4", "--json")[1])
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    assert report["prompt_ids"] == tokenizer(PROMPT).input_ids
    assert len(report["ids"]) == report["tokens"] and len(report["prompt_ids"]) == report["prompt_tokens"]
    assert tokenizer.decode(report["ids"]) == report["text"]


@pytest.mark.parametrize(("cache", "device"), [("fp16", "host"), ("int8", "model:tiny")])
def test_text_and_table(run: Run, model_folder: str, cache: str, device: str) -> None:
    code, out, error = run("generate", PROMPT, "-m", model_folder, "-d", "model:tiny", "-c", cache, "-n", "4")
    assert code == 0
    assert out.startswith(PROMPT)
    for name in ("tokens/s", "time to first token", "bits per cached element", "float model ranks first"):
        assert name in out
    assert f"cache format {cache}, device {device}" in error


def test_the_prompt_is_printed_when_the_bar_is_gone(
    run: Run, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal the bar would clear it."""
    monkeypatch.setattr(output.Counting, "__call__", lambda *_: print("[bar]", flush=True))
    out = run("generate", PROMPT, "-m", model_folder, "-d", "model:tiny", "-n", "2")[1]
    assert out.startswith(f"[bar]\n[bar]\n{PROMPT}")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("",), "no tokens"),
        ((PROMPT, "-n", "300"), "would have 304 tokens"),
        ((PROMPT, "--seed", "-1"), "seed"),
        ((PROMPT, "-t", "1e-9"), "temperature"),
        (("a \udcff b",), "not UTF-8 (at character 2)"),
    ],
)
def test_a_refused_prompt_prints_nothing_else(
    run: Run, model_folder: str, arguments: tuple[str, ...], reason: str
) -> None:
    code, out, error = run("generate", *arguments, "-m", model_folder, "-d", "model:tiny")
    assert (code, out) == (2, "") and reason in error and error.count("\n") == 1


@pytest.mark.parametrize("options", [("--json",), ()])
def test_no_empty_lines_where_stderr_is_no_terminal(run: Run, model_folder: str, options: tuple[str, ...]) -> None:
    error = run("generate", PROMPT, "-m", model_folder, "-d", "model:tiny", "-n", "2", *options)[2]
    assert error.count("\n") == 1 and error.startswith("model ")


def test_output_that_cannot_show_the_text(run: Run, model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert run("generate", "the sea é", "-m", model_folder, "-d", "model:tiny", "-n", "2")[0] == 0
    assert raw.getvalue().startswith(b"the sea ?")


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


def test_chat_goes_on_after_a_refused_message(
    run: Run, model_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talk(lines: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        code, out, error = run("chat", "-m", model_folder, "-d", "model:tiny", "-n", "3")
        assert code == 0
        return out, error

    out, error = talk("the sea was grey\n" + "it rained " * 200 + "\nit rained \udcff\nit rained\n\n")
    assert "would have" in error and "not UTF-8" in error
    assert out == talk("the sea was grey\nit rained\n\n")[0]


@pytest.mark.parametrize(
    ("stdin", "code"), [(None, 0), (io.TextIOWrapper(io.BytesIO(b"the sea \xff\n"), encoding="utf-8"), 2)]
)
def test_chat_without_a_readable_input(
    run: Run, model_folder: str, monkeypatch: pytest.MonkeyPatch, stdin: io.TextIOWrapper | None, code: int
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    found, _, error = run("chat", "-m", model_folder, "-d", "model:tiny", "-n", "3")
    assert found == code and ("not UTF-8" in error) == (code == 2)


def test_info(run: Run) -> None:
    facts = json.loads(run("info", "-d", "model:smollm2", "--json")[1])
    assert (facts["head_dim"], facts["lanes"], facts["bits_per_element"]) == (64, 3, 4.25)
    assert "bits_per_element" in run("info", "-d", "model:smollm2")[1]
