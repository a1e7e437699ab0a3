"""`statecell train`: make hybrid-tiny from texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from statecell.cli.output import JsonOption, Training, out, print_facts, print_json


def train(
    folder: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of checkpoints, logs and, in `model`, the result.")
    ] = Path("build/hybrid-tiny"),
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Steps of pre-training; the recipe's if left out.")
    ] = None,
    finetune_steps: Annotated[
        int | None, typer.Option("--finetune-steps", min=0, help="Steps over stored states; 0 leaves them out.")
    ] = None,
    refine_steps: Annotated[
        int | None, typer.Option("--refine-steps", min=0, help="Steps of a second run over stored states; with --from "
                                 "0 if left out.")
    ] = None,
    guard_steps: Annotated[
        int | None, typer.Option("--guard-steps", min=0, help="Steps with freeze gate, error feedback and scale "
                                 "predictor, over stored states; 0 leaves them out.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Formats of those steps in turn, with commas; as in `eval ppl`.")
    ] = None,
    weights: Annotated[
        bool, typer.Option("--guard-weights", help="Let the model's weights learn in those steps: 96 longer ones.")
    ] = False,
    begin: Annotated[
        str | None, typer.Option("--from", help="Begin with this model, a name or folder: --refine-steps, guards, and "
                                 "nothing before.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Streams in step.")] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="Name or path of a text; may be given several times.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the first weights and of the texts' order.")] = 0,
    threads: Annotated[int, typer.Option("--threads", help="Threads of the arithmetic; part of the recipe.")] = 1,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, whatever the folder holds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train the byte-level hybrid model that ships as hybrid-tiny: pre-training, with its states in 4 bits, its guards.

    Interrupt it at will: the same command goes on from the last checkpoint (one every two minutes) and ends with the
    same weights, bit for bit. Without options it is the shipped model's recipe, hours of one processor core.

    Example: statecell train --out build/hybrid-tiny --steps 4500 --seed 0 --json
    """
    from statecell.train import run
    from statecell.train.finetune import FinetuneRecipe, RefineRecipe
    from statecell.train.guarding import GuardRecipe
    from statecell.train.recipe import Recipe

    run.check_threads(threads)
    both: dict[str, Any] = {"seed": seed}
    both |= {"batch": batch} if batch is not None else {}
    both |= {"texts": tuple(text)} if text else {}
    first = Recipe(**both | ({"steps": steps} if steps is not None else {}))
    second = FinetuneRecipe(**both | ({"steps": finetune_steps} if finetune_steps is not None else {}))
    refine_steps = 0 if refine_steps is None and begin is not None else refine_steps
    other = both | {"seed": (seed + 1) % (1 << 31)}
    again = RefineRecipe(**other | ({"steps": refine_steps} if refine_steps is not None else {}))
    chosen = {"states": tuple(name.strip() for name in state.split(","))} if state is not None else {}
    guarding: Any = GuardRecipe.whole if weights else GuardRecipe
    third = guarding(**both | chosen | ({"steps": guard_steps} if guard_steps is not None else {}))
    if restart:
        run.restart(folder)
    with Training() as bar:
        stage = run.Stage(pretraining=bar.part("pre-training"), finetuning=bar.part("fine-tuning"),
                          refining=bar.part("refining"), guarding=bar.part("guards"),
                          exporting=bar.plain("calibrating"))
        facts = run.train(first, second, again, third, folder, stage, begin=begin)
    if as_json:
        print_json(facts)
        return
    rows = [(f"{part}, held-out bits per byte", facts[part]["held_out_bits_per_byte"])
            for part in ("pretraining", "finetuning", "refining", "guarding") if part in facts]
    print_facts("training", rows)
    out().print(f"the model: {facts['folder']}", soft_wrap=True)
