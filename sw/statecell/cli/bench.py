"""`statecell bench`: cycles of the attention command, and speed of a whole model."""

from __future__ import annotations

from typing import Annotated

import typer

from statecell.cli.output import (
    CacheFormat,
    CacheOption,
    Counting,
    DeviceOption,
    JsonOption,
    ModelOption,
    numbers,
    print_facts,
    print_json,
    print_rows,
)

app = typer.Typer(no_args_is_help=True, help="Measure the device, and a model on it.")


@app.command("attention")
def attention(
    head_dim: Annotated[int, typer.Option("--head-dim", help="Lanes of a row: 32, 64 or 128.")] = 64,
    rows: Annotated[str, typer.Option("--rows", help="Rows in the slot, several with commas.")] = "64,256,1024",
    queries: Annotated[str, typer.Option("--queries", help="Queries of one pass, several with commas.")] = "1,3",
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="sim:CONFIG. Default: the simulator of that head_dim.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency and interval of attention commands in device cycles.

    Example: statecell bench attention --head-dim 64 --rows 64,256,1024 --queries 1,3 --json
    """
    from statecell.bench.attention import BenchError, bench_attention, config_for

    row_counts, query_counts = numbers(rows, "--rows"), numbers(queries, "--queries")
    url = device if device is not None else f"sim:{config_for(head_dim)}"
    with Counting("bench") as step:
        results = bench_attention(url, rows=row_counts, queries=query_counts, progress=step)
    if results[0].head_dim != head_dim:
        raise BenchError(f"The device {url} has head_dim {results[0].head_dim}, not {head_dim}: give that --head-dim.")
    found = [result.as_dict() for result in results]
    print_json(found) if as_json else print_rows(f"attention on {url}", found)


@app.command("model")
def model(
    model: ModelOption = "smollm2-135m",
    device: DeviceOption = "sim:",
    cache: CacheOption = CacheFormat.INT4,
    context: Annotated[int, typer.Option("--context", min=1, help="Tokens in the cache, in the mean.")] = 64,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Tokens that are timed.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Measure decoding on the device beside the same loop with float attention.

    Example: statecell bench model --model smollm2-135m --device sim: --context 64 --json
    """
    from statecell.bench.model import bench_model

    with Counting("bench, runs") as step:
        result = bench_model(
            model, device_url=device, cache_format=cache.value, context=context, tokens=tokens, progress=step
        ).as_dict()
    print_json(result) if as_json else print_facts("model", ((k.replace("_", " "), v) for k, v in result.items()))


@app.command("sessions")
def sessions(
    model: ModelOption = "hybrid-tiny",
    state: Annotated[str, typer.Option("--state", help="Storage of the states: default, int4, int8, ...")] = "default",
    caches: Annotated[int, typer.Option("--caches", min=1, help="KV caches that the array holds.")] = 4,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of each.")] = 4096,
    as_json: JsonOption = False,
) -> None:
    """Count the conversations whose recurrent states fit where a few KV caches do.

    Example: statecell bench sessions --model hybrid-tiny --caches 4 --tokens 4096 --json
    """
    from statecell.bench.sessions import resident_sessions

    result = resident_sessions(model, state_format=state, caches=caches, tokens=tokens).as_dict()
    print_json(result) if as_json else print_facts("sessions", ((k.replace("_", " "), v) for k, v in result.items()))


@app.command("link")
def link(
    device: Annotated[
        str, typer.Option("--device", "-d", help="serial:///dev/ttyUSB0, or board:CONFIG for a simulated board.")
    ] = "board:tiny",
    kv_heads: Annotated[int, typer.Option("--kv-heads", min=1, help="KV heads of a layer, for bytes per token.")] = 3,
    faults: Annotated[
        str | None, typer.Option("--faults", help="Fault rates per byte, several with commas; board: only.")
    ] = None,
    outage: Annotated[
        float, typer.Option("--outage", help="With --faults: probability, for each byte, that the cable goes out.")
    ] = 0.0,
    commands: Annotated[int, typer.Option("--commands", "-n", min=1, help="Commands at each fault rate.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of commands and faults.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure a serial link: share of payload, commands a second, bytes per token, and commands under faults.

    Example: statecell bench link --device board:tiny --faults 0.0001,0.001 --commands 1000
    """
    from statecell.bench.attention import BenchError
    from statecell.bench.link import bench_faults, bench_link

    rates = _rates(faults)
    if outage and not rates:
        raise typer.BadParameter("give --faults too, 0 for outages alone", param_hint="--outage")
    if rates and not device.startswith("board:"):
        raise BenchError("Only a simulated board disturbs its wire: give --device board:CONFIG with --faults.")
    measured = bench_link(device, kv_heads=kv_heads, seed=seed).as_dict()
    disturbed = []
    for rate in rates:
        with Counting(f"faults {rate:g}, commands") as step:
            url = f"{device}{'&' if '?' in device else '?'}faults={rate!r}&outage={outage!r}&seed={seed}"
            found = bench_faults(
                url, fault_rate=rate, outage_rate=outage, commands=commands, seed=seed, progress=step
            )
            disturbed.append(found.as_dict())
    if as_json:
        print_json({**measured, "faults": disturbed})
        return
    print_facts("serial link", ((k.replace("_", " "), v) for k, v in measured.items()))
    if disturbed:
        print_rows("under faults", disturbed)


@app.command("recurrent")
def recurrent(
    heads: Annotated[int, typer.Option("--heads", min=1, help="Heads of the layer.")] = 32,
    dk: Annotated[int, typer.Option("--dk", help="Key lanes of a state: those of the device, or twice as many.")] = 128,
    dv: Annotated[int, typer.Option("--dv", help="Value channels of a state, a multiple of 8.")] = 128,
    family: Annotated[str, typer.Option("--family", help="linear, retnet, gla, mamba2, rwkv, deltanet, gdn.")] = "gdn",
    state: Annotated[str, typer.Option("--state", help="Storage: int4, int8 or residual.")] = "int4",
    interval: Annotated[
        int, typer.Option("--interval", "-c", min=1, max=128, help="Tokens from one write-back to the next.")] = 1,
    tokens: Annotated[
        int | None, typer.Option("--tokens", "-n", min=2, help="Tokens in a row; 4, or two intervals, unless given.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="sim:CONFIG. Default: the simulator that holds the heads.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the cycles of one layer's token, write-backs included, and compare every output with the model.

    Example: statecell bench recurrent --heads 32 --dk 128 --dv 128 --family gdn --interval 32 --json
    """
    from statecell.bench.recurrent import bench_recurrent, config_for
    from statecell.model.recurrent.families import FAMILIES
    from statecell.model.recurrent.mode import Storage

    if family not in FAMILIES:
        raise typer.BadParameter(f"{family!r} is not one of {', '.join(FAMILIES)}", param_hint="--family")
    if state not in set(Storage):
        raise typer.BadParameter(f"{state!r} is not one of {', '.join(Storage)}", param_hint="--state")
    url = device if device is not None else f"sim:{config_for(dk, heads)}"
    with Counting("bench, tokens") as step:
        found = bench_recurrent(
            url, heads=heads, dk=dk, dv=dv, family=family, storage=Storage(state), interval=interval, tokens=tokens,
            progress=step
        ).as_dict()
    print_json(found) if as_json else print_facts("recurrent", ((k.replace("_", " "), v) for k, v in found.items()))


@app.command("steps")
def steps(
    device: Annotated[
        str, typer.Option("--device", "-d", help="sim:CONFIG of a device with states, 18 of them at least.")
    ] = "sim:recur32",
    steps: Annotated[int, typer.Option("--steps", "-n", min=1, help="Tokens in each mode of each family.")] = 200,
    family: Annotated[
        str | None, typer.Option("--family", help="Families, with commas; all if left out.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of modes and tokens.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Compare random tokens of recurrent states in every mode of every family with the integer model.

    Logs and keys of two halves too. Every output, and registers and rows after each sequence of tokens; an error at the
    first that differs.

    Example: statecell bench steps --steps 10000 --json
    """
    from statecell.bench.steps import KINDS, bench_steps

    names = [name.strip() for name in family.split(",")] if family is not None else list(KINDS)
    with Counting("comparing, tokens") as step:
        found = [row.as_dict() for row in bench_steps(device, steps=steps, families=names, seed=seed, progress=step)]
    print_json(found) if as_json else print_rows(
        f"random tokens on {device}", [row | {"modes": len(row["modes"])} for row in found])


def _rates(text: str | None) -> list[float]:
    """Fault rates separated by commas."""
    try:
        rates = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        rates = [-1.0]
    if any(not 0 <= rate < 1 for rate in rates):
        raise typer.BadParameter(f"{text!r} is not a list of probabilities such as 0.0001,0.001", param_hint="--faults")
    return rates
