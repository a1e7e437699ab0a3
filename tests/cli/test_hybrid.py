"""The commands around hybrid models: train, generate, eval, calibrate, bench sessions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from statecell.runtime.recurrent.calibration import StateCalibration
from statecell.train import run as training
from tests.hybrid_folder import make_hybrid_folder
from tests.train.small import finetune_recipe, guard_recipe, recipe, refine_recipe, text

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid")
    (path / "text.txt").write_bytes(bytes(text().tolist()))
    return make_hybrid_folder(path / "small")


def test_train(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted after pre-training ends with the bytes of one that is not."""
    import statecell.train.corpus as corpus
    import statecell.train.export as export

    for module in (corpus, export, training):
        monkeypatch.setattr(module, "text_bytes", lambda _: text())
    monkeypatch.setattr("statecell.train.pretrain._PROBE", (2, 64))

    def small(**options: Any) -> Any:
        return recipe(**{**options, "texts": ("emma",)})

    monkeypatch.setattr("statecell.train.recipe.Recipe", small)
    monkeypatch.setattr("statecell.train.finetune.FinetuneRecipe",
                        lambda **options: finetune_recipe(**{**options, "steps": options.get("steps", 2)}))
    monkeypatch.setattr("statecell.train.finetune.RefineRecipe",
                        lambda **options: refine_recipe(**{**options, "steps": options.get("steps", 2)}))
    monkeypatch.setattr("statecell.train.guarding.GuardRecipe",
                        lambda **options: guard_recipe(**{**options, "steps": options.get("steps", 2)}))
    code, out, _ = run("train", "-o", str(tmp_path / "one"), "--steps", "4", "--json")
    facts = json.loads(out)
    assert code == 0 and set(facts) == {"folder", "pretraining", "finetuning", "refining", "guarding"}
    assert (facts["finetuning"]["seed"], facts["refining"]["seed"]) == (0, 1)
    assert facts["pretraining"]["steps"] == 4 and 0 < facts["finetuning"]["held_out_bits_per_byte"] < 9
    short = ("--finetune-steps", "0", "--refine-steps", "0", "--guard-steps", "0")
    assert run("train", "-o", str(tmp_path / "two"), "--steps", "4", *short)[0] == 0
    assert not (tmp_path / "two" / "model" / "guards.safetensors").exists()
    code, out, _ = run("train", "-o", str(tmp_path / "two"), "--steps", "4")
    assert code == 0 and "held-out bits per byte" in out
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]
    guards = [load_file(tmp_path / name / "model" / "guards.safetensors") for name in ("one", "two")]
    assert all(torch.equal(value, guards[1][name]) for name, value in guards[0].items())
    code, out, error = run("train", "-o", str(tmp_path / "one"), "--steps", "4", "--seed", "1")
    assert (code, out) == (2, "") and "another recipe (seed differ)" in error and error.count("\n") == 1
    assert run("train", "-o", str(tmp_path / "one"), "--steps", "4", "--seed", "1", "--restart")[0] == 0


def test_train_the_guards_of_a_model(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import statecell.train.export as export

    for module in (export, training):
        monkeypatch.setattr(module, "text_bytes", lambda _: text())
    monkeypatch.setattr("statecell.train.pretrain._PROBE", (2, 64))
    monkeypatch.setattr("statecell.train.finetune.RefineRecipe", refine_recipe)
    monkeypatch.setattr("statecell.train.guarding.GuardRecipe", guard_recipe)
    options = ("train", "-o", str(tmp_path), "--guard-steps", "2", "--state", "int4-predicted, residual")
    code, out, _ = run(*options, "--from", str(folder), "--json")
    facts = json.loads(out)
    assert code == 0 and set(facts) == {"folder", "guarding"}
    assert facts["guarding"]["states"] == ["int4-predicted", "residual"]
    code, out, _ = run("train", "-o", str(tmp_path / "more"), "--from", str(folder), "--refine-steps", "2",
                       "--guard-steps", "0", "--json")
    assert code == 0 and set(json.loads(out)) == {"folder", "refining"}
    made = str(tmp_path / "model")
    source = ("--text", str(folder.parent / "text.txt"), "--tokens", "64", "--streams", "1")
    code, out, _ = run("eval", "ppl", "--model", made, *source, "--state", "int4-predicted,residual", "--json")
    rows = json.loads(out)
    assert code == 0 and [row["bits_per_element"] for row in rows] == [4.25, 8.5]
    code, out, _ = run("generate", "All work", "--model", made, "-n", "4", "--state", "int4-predicted", "--json")
    assert code == 0 and json.loads(out)["tokens"] == 4
    for model, words in ((made, "trained guards already"), ("smollm2", "There is no model")):
        code, out, error = run(*options, "--from", model)
        assert (code, out) == (2, "") and words in error and error.count("\n") == 1
    code, out, error = run("eval", "ppl", "--model", str(folder), *source, "--state", "int4-predicted")
    assert (code, out) == (2, "") and "needs a trained scale predictor" in error and error.count("\n") == 1


def test_generate(run: Run, folder: Path) -> None:
    arguments = ("generate", "All work", "--model", str(folder), "-n", "6")
    code, out, error = run(*arguments, "--json")
    report = json.loads(out)
    assert code == 0 and report["device"] == "model:hybrid" and report["tokens"] == 6
    assert "falling back" not in error and report["saturated_elements"] is not None
    plain = json.loads(run(*arguments, "--json", "--cache", "fp16")[1])
    assert plain["device"] == "host" and plain["agreement"] == 1
    assert json.loads(run(*arguments, "--json", "--state", "int8")[1])["agreement"] is not None
    code, out, error = run(*arguments, "--device", "sim:smollm2")
    assert (code, out) == (2, "") and "states, which sim:smollm2 cannot keep" in error and error.count("\n") == 1
    code, out, error = run(*arguments, "--state", "int3")
    assert (code, out) == (2, "") and "'int3' is not known" in error and error.count("\n") == 1


def test_generate_on_a_device(run: Run) -> None:
    """The shipped model with all of its states and its KV cache in the Verilated device writes what the model does."""
    arguments = ("generate", "Anne was ", "--model", "hybrid-tiny", "-n", "9", "--json")
    device, model = (json.loads(run(*arguments, "--device", url)[1]) for url in ("sim:", "model:"))
    assert (device["device"], model["device"]) == ("sim:hybrid", "model:hybrid")
    for name in ("ids", "text", "agreement", "mean_logit_difference", "array_bytes_per_token"):
        assert device[name] == model[name], name
    code, out, error = run("eval", "equality", "--model", "hybrid-tiny", "--state", "int8", "--prompt-tokens", "5",
                           "-n", "4", "--json")
    facts = json.loads(out)
    assert code == 0 and "falling back" not in error
    assert (facts["vectors"], facts["readouts"], facts["different"]) == (4 * 8, 6 * 8, 0)


def test_eval(run: Run, folder: Path) -> None:
    source = str(folder.parent / "text.txt")
    options = ("--model", str(folder), "--text", source)
    code, out, _ = run("eval", "ppl", *options, "--tokens", "64", "--streams", "2", "--state", "fp32,default", "--json")
    rows = json.loads(out)
    assert code == 0 and [row["state"] for row in rows] == ["fp32", "default"]
    assert rows[1]["ppl"] != rows[1]["ppl_reference"] == rows[0]["ppl"]
    code, out, _ = run("eval", "ppl", *options, "--tokens", "64", "--state", "int4")
    assert code == 0 and "4.25" in out and "0-1024" in out
    code, out, _ = run("eval", "junk", *options, "--runs", "4", "--prompt", "40", "--gap", "8", "--follow", "8",
                       "--streams", "1", "--state", "fp32", "--json")
    assert code == 0 and [row["junk"] for row in json.loads(out)] == ["#", "padding"]
    code, out, _ = run("eval", "needle", *options, "--distances", "8", "--words", "1", "--state", "fp32")
    assert code == 0 and "untold" in out


def test_calibrate(run: Run, folder: Path, cache: Path) -> None:
    source = str(folder.parent / "text.txt")
    code, out, _ = run("calibrate", "--model", str(folder), "--text", source, "--tokens", "128", "--json")
    facts = json.loads(out)
    assert code == 0 and len(facts["decay"]) == 2
    assert StateCalibration.load(Path(facts["states_file"])).tokens == 128
    assert Path(facts["states_file"]).parent == cache / "calibrations"


def test_sessions(run: Run, folder: Path) -> None:
    code, out, _ = run("bench", "sessions", "--model", str(folder), "--json")
    assert code == 0 and json.loads(out)["resident"] == 4 * 257 // 14
