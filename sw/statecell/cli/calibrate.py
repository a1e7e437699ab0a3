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

    Of recurrent layers the decay of every head and the largest values and states are measured too: they choose which
    heads are stored in two planes. The named models ship with a calibration; another model runs without one, less
    accurately, until it has been calibrated. Do not calibrate on the text that you evaluate on.

    Example: statecell calibrate --model ./my-llama --text emma --tokens 8192
    """
    from statecell.runtime.calibration import calibrate as measure
    from statecell.runtime.calibration import fingerprint, own_path
    from statecell.runtime.recurrent.calibration import calibrate_states, state_path
    from statecell.runtime.support import context_of, model_geometry
    from statecell.store.models import load_model
    from statecell.store.texts import load_text

    loaded = load_model(model)
    shape, window = model_geometry(loaded.model), min(1024, context_of(loaded.model))
    known_as = fingerprint(loaded.model)
    path = own_path(known_as)
    path.parent.mkdir(parents=True, exist_ok=True)  # before minutes of work, if it cannot be made
    ids = loaded.tokenizer(load_text(text), add_special_tokens=False)["input_ids"][:tokens]
    facts = {"model": loaded.name, "text": text, "tokens": len(ids)}
    if shape.layers:
        with Counting("calibrating, tokens") as step:
            measure(loaded.model, ids, name=loaded.name, text=text, window=window, progress=step).save(path)
        facts["file"] = str(path)
    if shape.states is not None:
        with Counting("calibrating states, tokens") as step:
            states = calibrate_states(loaded.model, ids, name=loaded.name, text=text, window=len(ids), progress=step)
        states.save(state_path(known_as))
        facts |= {"states_file": str(state_path(known_as)), "decay": states.decay.tolist()}
    if as_json:
        print_json(facts)
    else:
        kept = facts.get("file", facts.get("states_file"))
        out().print(f"{loaded.name}: {len(ids)} tokens of {text}, kept in {kept}", soft_wrap=True)
