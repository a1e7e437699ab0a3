"""`statecell calibrate`: measure a model's key and value means once, and keep them."""

from __future__ import annotations

from typing import Annotated

import typer

from statecell.cli.output import Counting, JsonOption, ModelOption, out, print_json


def calibrate(
    model: ModelOption = "smollm2-135m",
    text: Annotated[str, typer.Option("--text", help="Name of a text, or path of a UTF-8 file.")] = "emma",
    tokens: Annotated[int, typer.Option("--tokens", min=64, help="Tokens of the text to read.")] = 8192,
    as_json: JsonOption = False,
) -> None:
    """Measure the key and value means of a model on a text, and keep them for every later run of that model.

    The named models ship with a calibration; another model runs without one, less accurately, until it has been
    calibrated. Do not calibrate on the text that you evaluate on.

    Example: statecell calibrate --model ./my-llama --text emma --tokens 8192
    """
    from statecell.runtime.calibration import calibrate as measure
    from statecell.runtime.calibration import fingerprint, own_path
    from statecell.store.models import load_model
    from statecell.store.texts import load_text

    loaded = load_model(model)
    window = min(1024, getattr(loaded.model.config, "max_position_embeddings", 1024))
    path = own_path(fingerprint(loaded.model))
    path.parent.mkdir(parents=True, exist_ok=True)  # before minutes of work, if it cannot be made
    ids = loaded.tokenizer(load_text(text), add_special_tokens=False)["input_ids"][:tokens]
    with Counting("calibrating, tokens") as step:
        calibration = measure(loaded.model, ids, name=loaded.name, text=text, window=window, progress=step)
    calibration.save(path)
    if as_json:
        print_json({"model": loaded.name, "text": text, "tokens": calibration.tokens, "file": str(path)})
    else:
        out().print(f"{loaded.name}: {calibration.tokens} tokens of {text}, kept in {path}", soft_wrap=True)
