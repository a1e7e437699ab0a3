"""`statecell eval`: what a cache format costs in quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from statecell.cli.output import (
    CacheFormat,
    CacheOption,
    Counting,
    JsonOption,
    ModelOption,
    RecalibrateOption,
    numbers,
    print_facts,
    print_json,
    print_rows,
)
from statecell.store.errors import StoreError

app = typer.Typer(no_args_is_help=True, help="Perplexity of a cache format, and agreement with the float model.")

TextOption = Annotated[str, typer.Option("--text", help="Name of a text, or path of a UTF-8 file.")]
StatesOption = Annotated[
    str, typer.Option("--state", help="Storage formats of recurrent states, with commas; see `statecell eval ppl`.")
]
EngineOption = Annotated[
    str, typer.Option("--device", "-d", help="model: for the integer model (the device's results), or sim:CONFIG.")
]


@app.command("ppl")
def ppl(
    model: ModelOption = "smollm2-135m",
    text: TextOption = "persuasion",
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens to evaluate, a multiple of the window.")] = 4096,
    window: Annotated[int, typer.Option("--window", help="Tokens of one sequence.")] = 1024,
    cache: Annotated[
        list[str] | None,
        typer.Option("--cache", "-c", help="int4, int8, fp16, float or naive-int4; may be given several times."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Compare storage formats of recurrent states instead, with commas: fp32, default, int4, int8, "
            "int4-log8, int4-predicted, residual, naive-int4, ...; each of --streams sequences then has all --tokens.",
        ),
    ] = None,
    streams: Annotated[
        int, typer.Option("--streams", min=1, help="Sequences for --state, evenly spread over the text.")
    ] = 4,
    recalibrate: RecalibrateOption = None,
    device: EngineOption = "model:",
    also: Annotated[
        Path | None,
        typer.Option("--also", help="JSON list of rows from elsewhere: cache, ppl, ppl_reference, bits_per_element."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Perplexity with a cache format beside that of float attention over the same tokens.

    With --state it is that of stored recurrent states beside float32 ones, and --window and --cache are not used.

    Example: statecell eval ppl --model smollm2-135m --text persuasion --tokens 4096 --window 1024 --cache int4 --json
    Example: statecell eval ppl --model hybrid-tiny --text persuasion --tokens 32768 --state fp32,int8,int4,default
    """
    if state is not None:
        _states(model, text, state, tokens, streams, recalibrate, as_json)
        return
    others = _rows_of(also)
    from statecell.evaluate.perplexity import perplexity

    with Counting("evaluating, windows") as step:
        results = perplexity(
            model,
            text,
            cache_formats=cache or ["int4"],
            device_url=device,
            tokens=tokens,
            window=window,
            progress=step,
        )
    rows = [result.as_dict() for result in results] + others
    if as_json:
        print_json(rows[0] if len(rows) == 1 else rows)
        return
    columns = ("cache", "bits_per_element", "ppl", "ppl_reference", "increase")
    first = results[0]
    title = f"{first.model} on {text}, {first.tokens} tokens in windows of {first.window}"
    print_rows(title, [{name: row.get(name) for name in columns} for row in rows])


def _states(model: str, text: str, names: str, tokens: int, streams: int, recalibrate: int | None,
            as_json: bool) -> None:
    from statecell.evaluate.states import state_perplexity

    with Counting("evaluating, tokens") as step:
        results = state_perplexity(
            model,
            text,
            states=_names(names),
            tokens=tokens,
            streams=streams,
            recalibrate=recalibrate,
            progress=step,
        )
    if as_json:
        print_json([result.as_dict() for result in results])
        return
    columns = ("state", "bits_per_element", "log_bits_per_element", "ppl", "bits_per_byte", "loss_added",
               "loss_added_error", "relative", "relative_8k")
    first = results[0]
    title = f"{first.model} on {first.text}, {first.streams} sequences of {first.tokens} tokens"
    print_rows(title, [{name: row.as_dict()[name] for name in columns} for row in results])
    print_rows("loss added, bits per byte, by position", [{"state": row.state, **row.added_by_position}
                                                          for row in results])


def _rows_of(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [
            {
                **row,
                "ppl": float(row["ppl"]),
                "ppl_reference": float(row["ppl_reference"]),
                "bits_per_element": float(row["bits_per_element"]),
                "increase": row["ppl"] / row["ppl_reference"] - 1,
                "cache": str(row["cache"]),
            }
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise StoreError(
            f"The rows in {path} cannot be read ({error}): give a JSON list of objects with cache, ppl, ppl_reference "
            "and bits_per_element."
        ) from error


@app.command("junk")
def junk(
    model: ModelOption = "hybrid-tiny",
    text: TextOption = "persuasion",
    state: StatesOption = "fp32,default",
    runs: Annotated[str, typer.Option("--runs", help="Lengths of the runs, with commas.")] = "16,64,256",
    prompt: Annotated[int, typer.Option("--prompt", min=1, help="Tokens before what is measured.")] = 1024,
    gap: Annotated[int, typer.Option("--gap", min=0, help="Of them, tokens after the run.")] = 64,
    follow: Annotated[int, typer.Option("--follow", min=1, help="Tokens that are measured.")] = 512,
    streams: Annotated[int, typer.Option("--streams", min=1, help="Pieces of the text.")] = 8,
    as_json: JsonOption = False,
) -> None:
    """What runs of '#' and of padding in the prompt cost in perplexity of the text after them.

    Example: statecell eval junk --model hybrid-tiny --text persuasion --runs 64,256 --json
    """
    from statecell.evaluate.junk import junk_cost

    with Counting("evaluating, runs") as step:
        rows = [row.as_dict() for row in junk_cost(
            model, text, states=_names(state), runs=numbers(runs, "--runs"), prompt=prompt, gap=gap, follow=follow,
            streams=streams, progress=step)]
    columns = ("state", "junk", "run", "ppl_plain", "ppl", "increase")
    print_json(rows) if as_json else print_rows("junk", [{name: row[name] for name in columns} for row in rows])


@app.command("needle")
def needle(
    model: ModelOption = "hybrid-tiny",
    text: TextOption = "persuasion",
    state: StatesOption = "fp32,default,int4,softmax",
    distances: Annotated[str, typer.Option("--distances", help="Tokens between word and question.")] = "1024,4096,8192",
    words: Annotated[int, typer.Option("--words", min=1, help="Random words.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the words.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Bits that a random word costs when it is asked for, told far back in the text and not told at all.

    The state format softmax empties the states before the question, so that the softmax layers alone can answer it.

    Example: statecell eval needle --model hybrid-tiny --distances 1024,4096 --state fp32,int4,softmax --json
    """
    from statecell.evaluate.needle import needle as measure

    with Counting("evaluating, rows") as step:
        rows = [row.as_dict() for row in measure(
            model, text, states=_names(state), distances=numbers(distances, "--distances"), words=words, seed=seed,
            progress=step)]
    columns = ("state", "distance", "bits", "bits_untold", "found")
    print_json(rows) if as_json else print_rows("needle", [{name: row[name] for name in columns} for row in rows])


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


@app.command("agreement")
def agreement(
    model: ModelOption = "smollm2-135m",
    text: TextOption = "persuasion",
    cache: CacheOption = CacheFormat.INT4,
    device: EngineOption = "model:",
    prompts: Annotated[int, typer.Option("--prompts", help="Prompts, evenly spread over the text.")] = 5,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", help="Tokens of a prompt.")] = 64,
    tokens: Annotated[int, typer.Option("--tokens", "-n", help="Tokens generated after each.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """Greedy text with a cache format beside the float model's: top-1 agreement and mean logit difference.

    Example: statecell eval agreement --model smollm2-135m --text persuasion --prompts 5 --json
    """
    from statecell.evaluate.agreement import agreement as measure

    with Counting("evaluating, prompts") as step:
        result = measure(
            model,
            text,
            cache_format=cache.value,
            device_url=device,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            progress=step,
        ).as_dict()
    if as_json:
        print_json(result)
        return
    per_prompt = result.pop("per_prompt")
    print_rows("prompts", per_prompt)
    print_facts("agreement", ((name.replace("_", " "), value) for name, value in result.items()))


@app.command("datapath")
def datapath(
    model: ModelOption = "smollm2-135m",
    text: TextOption = "persuasion",
    config: Annotated[
        str | None, typer.Option("--config", help="Configuration; by the model's head_dim if left out.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens to run, a multiple of the window.")] = 1024,
    window: Annotated[int, typer.Option("--window", help="Tokens of one sequence.")] = 512,
    as_json: JsonOption = False,
) -> None:
    """Error of the data path alone: cosine against exact attention over the same stored rows, for every output vector.

    Example: statecell eval datapath --model smollm2-135m --text persuasion --tokens 1024 --json
    """
    from statecell.evaluate.datapath import datapath as measure

    with Counting("evaluating, windows") as step:
        result = measure(model, text, config_name=config, tokens=tokens, window=window, progress=step).as_dict()
    if as_json:
        print_json(result)
        return
    print_facts("data path", ((name.replace("_", " "), value) for name, value in result.items()))


@app.command("equality")
def equality(
    model: ModelOption = "smollm2-135m",
    device: Annotated[
        str, typer.Option("--device", "-d", help="The device to check, such as sim: or sim:CONFIG.")
    ] = "sim:",
    state: Annotated[
        str, typer.Option("--state", help="How recurrent states are stored; see `statecell generate`.")
    ] = "default",
    recalibrate: RecalibrateOption = None,
    text: TextOption = "persuasion",
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Tokens of the prompt.")] = 16,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Tokens generated.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Compare every attention and recurrent read-out of a generation on a device with the integer model, bit for bit.

    Exit code 1 if any differs.

    Example: statecell eval equality --model smollm2-135m --device sim: --tokens 16 --json
    Example: statecell eval equality --model hybrid-tiny --device sim: --state int4 --tokens 64 --json
    """
    from statecell.evaluate.equality import equality as measure

    with Counting("comparing, tokens") as step:
        result = measure(
            model, device_url=device, state_format=state, recalibrate=recalibrate, text=text,
            prompt_tokens=prompt_tokens, tokens=tokens, progress=step,
        )
    if as_json:
        print_json(result.as_dict())
    else:
        print_facts("device against integer model", ((k.replace("_", " "), v) for k, v in result.as_dict().items()))
    if result.different:
        raise typer.Exit(1)
