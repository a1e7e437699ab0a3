"""`statecell drift`: how far a recurrent state strays in each storage mode, predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statecell.cli.output import Counting, JsonOption, out, print_json, print_rows

_HEAD = ("mode", "head", "decay", "spectral_radius", "epsilon", "bound", "expected", "state_error", "inflation")
_MODE = ("mode", "bits_per_element", "log_bits_per_element", "state_error", "inflation")
_DECAYS = "0.9,0.97,0.99,0.999,0.9998"


def drift(
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens, at least 256.")] = 4096,
    family: Annotated[
        str, typer.Option("--family", help="linear, retnet, gla, mamba2, rwkv, deltanet or gdn.")
    ] = "gdn",
    decays: Annotated[str, typer.Option("--decays", help="Decay of each head, with commas.")] = _DECAYS,
    modes: Annotated[
        str, typer.Option("--modes", help="Storage modes with commas, such as default,int8,naive-int8; all if empty.")
    ] = "",
    channels: Annotated[
        int, typer.Option("--channels", min=1, help="Value channels of a head; they are independent rows.")
    ] = 8,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Tokens of the Gated DeltaNet layers of this Hugging Face folder."),
    ] = None,
    text: Annotated[str, typer.Option("--text", help="What the model reads: name of a text, or path.")] = "persuasion",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the tokens.")] = 0,
    plot: Annotated[
        Path | None, typer.Option("--out", "-o", help="Draw the errors to this path, as PNG and SVG.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the drift of recurrent states against float64, beside naive INT4 and INT8.

    The tokens are synthetic (--family, --decays, --seed), or a model's own on a text (--model). Every mode of the array
    runs in the bit-exact integer model.

    Example: statecell drift --tokens 32768 --modes default,int8,naive-int8 -o drift --json
    """
    from statecell.bench import plots
    from statecell.evaluate.drift import DriftError, check, drift_of
    from statecell.evaluate.drift import drift as measure
    from statecell.evaluate.driftrows import summary
    from statecell.evaluate.sequences import DESCRIPTION
    from statecell.model.recurrent.families import FAMILIES

    try:
        wanted = [float(part) for part in decays.split(",")]
    except ValueError:
        raise DriftError(f"{decays!r} is not a list of decays such as {_DECAYS}.") from None
    named = [name.strip() for name in modes.split(",") if name.strip()]
    with Counting("drift, tokens") as step:
        if model is None:
            inputs = DESCRIPTION
            rows = measure(family, wanted, named, tokens=tokens, channels=channels, seed=seed, progress=step)
        else:
            inputs = f"the Gated DeltaNet layers of {model} on {text}"
            check(named, tokens)
            sequence = _of_model(model, text, tokens, channels)
            rows = drift_of(sequence, FAMILIES["gdn"].rule, named, progress=step)
    found, lines = [row.as_dict() for row in rows], [line.as_dict() for line in summary(rows)]
    files = plots.drift(found, plot) if plot is not None else []
    if as_json:
        print_json({
            "inputs": inputs, "family": "gdn" if model else family, "tokens": tokens, "seed": None if model else seed,
            "channels": channels, "modes": lines, "heads": found, "files": [str(file) for file in files],
        })
        return
    print_rows(f"drift over {tokens:,} tokens, by head", [_line(row, _HEAD) for row in found])
    print_rows("all heads", [_line(row, _MODE) for row in lines])
    out().print(f"inputs: {inputs}")
    for file in files:
        out().print(str(file), soft_wrap=True)


def _of_model(name: str, text: str, tokens: int, channels: int) -> Any:
    from statecell.evaluate.capture import captured
    from statecell.evaluate.perplexity import check_context, text_ids, windows_of
    from statecell.store.models import load_model

    loaded = load_model(name)
    check_context(loaded.model, tokens)
    return captured(loaded.model, windows_of(text_ids(loaded.tokenizer, text), tokens, tokens)[0], channels=channels)


def _line(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Some values of a row, the last error of its read-outs, and by what that grew."""
    last = max(row["read_error"])
    return {name: row[name] for name in names} | {"read_error": row["read_error"][last], "growth": row["growth"]}
