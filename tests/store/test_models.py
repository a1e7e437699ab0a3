from __future__ import annotations

import hashlib
import io
import json
import socket
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from logging import StreamHandler
from pathlib import Path

import pytest
from transformers.utils import logging

from statecell.store import models
from statecell.store.download import checked
from statecell.store.errors import CorruptDownloadError, StoreError, UnknownNameError
from statecell.store.models import load_model
from tests.small_folder import make_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _register(monkeypatch: pytest.MonkeyPatch, wheel: bytes) -> list[str]:
    """Make `glassllm` a wheel with the given bytes; returns the list of downloads made."""
    calls: list[str] = []

    def download(requirement: str, filename: str, size: int, sha256: str, folder: Path) -> Path:
        calls.append(requirement)
        path = folder / filename
        path.write_bytes(wheel)
        return checked(path, sha256)

    def convert(files: Sequence[Path], target: Path) -> None:
        (target / "config.json").write_bytes(files[0].read_bytes())

    source = replace(
        models.MODELS["glassllm"],
        wheel_sha256=hashlib.sha256(_wheel()).hexdigest(),
        members=("glassllm/weights/en.npz",),
        convert=convert,
    )
    monkeypatch.setitem(models.MODELS, "glassllm", source)
    monkeypatch.setattr(models, "pip_download", download)
    return calls


def _wheel(member: str = "glassllm/weights/en.npz") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), b"weights")
    return buffer.getvalue()


def test_a_model_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _register(monkeypatch, _wheel())
    assert not models.is_fetched("glassllm")
    folder = models.fetch_model("glassllm")
    assert models.fetch_model("glassllm") == folder == cache / "models" / "glassllm"
    assert calls == ["glassllm==0.1.0"]
    assert [entry.name for entry in folder.iterdir()] == ["config.json"]
    assert [entry.name for entry in folder.parent.iterdir()] == ["glassllm"]


def test_a_corrupt_wheel_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, _wheel() + b"x")
    with pytest.raises(CorruptDownloadError, match="is corrupt"):
        models.fetch_model("glassllm")
    assert not models.is_fetched("glassllm")
    assert list((cache / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = _wheel("glassllm/other")
    _register(monkeypatch, wheel)
    source = replace(models.MODELS["glassllm"], wheel_sha256=hashlib.sha256(wheel).hexdigest())
    monkeypatch.setitem(models.MODELS, "glassllm", source)
    with pytest.raises(CorruptDownloadError, match="does not hold what it should"):
        models.fetch_model("glassllm")
    assert list((cache / "models").iterdir()) == []


def test_unknown_names_are_refused_with_the_known_ones(cache: Path) -> None:
    with pytest.raises(UnknownNameError, match="no model 'gpt-9': use one of smollm2-135m, glassllm"):
        models.load_model("gpt-9")


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no config.json"):
        models.load_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StoreError, match="cannot be opened"):
        models.load_model(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUFnot")
    with pytest.raises(StoreError, match=r"x\.gguf cannot be opened \(it is damaged or incomplete\): give a file"):
        models.load_model(tmp_path / "x.gguf")


def test_no_hub_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    """A name that a hub would know is refused here, without a connection."""
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(UnknownNameError):
        models.load_model("gpt2")


def test_missing_layers_are_refused(tmp_path: Path) -> None:
    """Without the check transformers fills them with random numbers and goes on."""
    folder = make_folder(tmp_path / "small")
    settings = json.loads((folder / "config.json").read_text())
    settings["num_hidden_layers"] += 2
    settings.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(StoreError, match=r"lacks \d+ of the model's tensors"):
        load_model(str(folder))


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_its_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    folder = make_folder(tmp_path / "small")
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(StoreError, match=r"tokenizer in .*small cannot be opened: give .*tokenizer\.json"):
        load_model(folder)


def test_what_transformers_has_to_say_about_a_folder_is_not_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "small")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    handler = StreamHandler(sys.stderr)  # its own handler may be tied to another test's standard error
    logging.add_handler(handler)
    capfd.readouterr()
    try:
        with pytest.raises(StoreError, match=r"cannot be opened|of the model's tensors"):
            load_model(folder)
    finally:
        logging.remove_handler(handler)
    assert capfd.readouterr().err == ""


def test_the_tokenizer_takes_texts_beyond_the_context(tmp_path: Path) -> None:
    """Otherwise transformers warns on stderr about texts that are cut into windows anyway."""
    folder = make_folder(tmp_path / "small", context=8)
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 8
    assert load_model(folder).tokenizer.model_max_length > 1 << 60


@pytest.mark.parametrize("name", ["", "x" * 5000, "~no-such-user/model"])
def test_names_that_are_no_paths(name: str) -> None:
    with pytest.raises(UnknownNameError):
        load_model(name)


def test_the_shipped_model_opens_without_cache_or_connection(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert models.is_fetched("hybrid-tiny")
    loaded = load_model("hybrid-tiny")
    assert loaded.folder == models.fetch_model("hybrid-tiny") and not cache.exists()
    assert type(loaded.model).__name__ == "Qwen3_5ForCausalLM" and loaded.tokenizer.eos_token_id == 256
    names = {file.name for file in loaded.folder.iterdir()}
    assert {"LICENSE.txt", "recipe.json", "states.safetensors", "calibration.safetensors"} <= names
    assert sum(file.stat().st_size for file in loaded.folder.iterdir()) < 8_000_000
    recipe = json.loads((loaded.folder / "recipe.json").read_text())
    assert recipe["held_out"] == "persuasion" and "persuasion" not in recipe["pretraining"]["texts"]
