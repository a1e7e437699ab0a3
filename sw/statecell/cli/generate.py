"""`statecell generate` and `statecell chat`: text from a model whose KV cache is in the array."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from statecell.cli.output import (
    CacheFormat,
    CacheOption,
    Counting,
    JsonOption,
    ModelOption,
    RecalibrateOption,
    complain,
    err,
    known_device,
    out,
    print_facts,
    print_json,
)
from statecell.errors import StatecellError

if TYPE_CHECKING:
    from statecell.runtime.report import GenerationReport
    from statecell.runtime.session import Session

TokensOption = Annotated[int, typer.Option("--tokens", "-n", min=1, help="Most tokens to generate.")]
OptionalDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        callback=known_device,
        help="As everywhere (see `statecell bench model --help`); if left out sim:, or model: for a model with "
        "recurrent states.",
    ),
]
StateOption = Annotated[
    str,
    typer.Option(
        "--state",
        help="How recurrent states are stored: default (two planes for the slow heads, the others in 4 bits), int4, "
        "int8, int4-log8, ...",
    ),
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", "-t", min=0.0, help="0 takes the likeliest token, above 0 samples.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the sampling.")]


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue.")],
    model: ModelOption = "smollm2-135m",
    device: OptionalDeviceOption = None,
    cache: CacheOption = CacheFormat.INT4,
    state: StateOption = "default",
    recalibrate: RecalibrateOption = None,
    tokens: TokensOption = 64,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Continue a text, with every attention of the model computed by the device.

    Example: statecell generate "The best thing about a walk by the sea is" --device sim: --cache int4 --tokens 32
    """
    with _session(model, device, cache, state, recalibrate) as session:
        session.checked(prompt, tokens, temperature, seed)
        _introduce(session)
        report = _answer(session, prompt, tokens, temperature, seed, quiet=as_json, before=prompt)
        if as_json:
            print_json({"prompt": prompt, **report.as_dict(), "calibration": session.calibration})
        else:
            _print_report(report)


def chat(
    model: ModelOption = "smollm2-135m",
    device: OptionalDeviceOption = None,
    cache: CacheOption = CacheFormat.INT4,
    state: StateOption = "default",
    recalibrate: RecalibrateOption = None,
    tokens: TokensOption = 128,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = 0,
) -> None:
    """Talk with a model; its cache keeps the conversation, so each turn processes only what is new.

    An empty line ends the conversation. A message that is refused, because it is too long for example, leaves no trace.

    Example: statecell chat --model smollm2-135m --cache int4
    """
    from statecell.device import ArrayFullError
    from statecell.runtime.errors import NotFiniteError, UnsupportedError
    from statecell.runtime.turns import Conversation

    with _session(model, device, cache, state, recalibrate) as session:
        conversation = Conversation(session)
        _introduce(session)
        while message := _ask():
            try:
                report = _answer(session, conversation.ask(message), tokens, temperature, seed, quiet=False)
            except (ArrayFullError, NotFiniteError, UnsupportedError) as error:
                complain(str(error))
                continue
            conversation.answered(report.text)
            rate = f", {report.tokens_per_s:.2f} tokens/s" if report.tokens_per_s else ""
            summary = f"[{report.cache}: {report.tokens} tokens{rate}, {len(session.ids)} in the cache]"
            err().print(summary, style="dim", markup=False)


def _ask() -> str:
    if sys.stdin is None:  # closed by whoever started this process
        return ""
    try:
        return err().input("you: ").strip()
    except EOFError:
        return ""
    except UnicodeDecodeError as error:
        raise StatecellError("The input is not UTF-8: give it in UTF-8, and check the locale.") from error


def _session(model: str, device: str | None, cache: CacheFormat, state: str, recalibrate: int | None) -> Session:
    # torch and transformers take seconds to load: only where they are needed.
    with err().status("loading torch and transformers"):
        from statecell.runtime.session import Session

    return Session(model, device, cache.value, state, recalibrate)


def _introduce(session: Session) -> None:
    err().print(
        f"model {session.name}, cache format {session.cache_format}, device {session.device}, "
        f"calibration {session.calibration}",
        markup=False,
        soft_wrap=True,
    )


def _answer(
    session: Session,
    prompt: str | list[int],
    tokens: int,
    temperature: float,
    seed: int,
    *,
    quiet: bool,
    before: str = "",
) -> GenerationReport:
    """Generate, with a progress bar while the prompt is processed, then (unless `quiet`) the text as it comes.

    `before` is shown in front of the text, not earlier: the bar, when it goes, clears the line that it is on.
    """
    held = [before]

    def show(*text: str) -> None:
        out().print(*held, *text, sep="", end="", markup=False, soft_wrap=True)
        held.clear()

    with Counting("reading the prompt, layers") as layers:
        report = session.generate(
            prompt,
            max_new_tokens=tokens,
            temperature=temperature,
            seed=seed,
            on_text=None if quiet else show,
            on_prefill=layers,
        )
    if not quiet:
        show("\n")
    return report


def _print_report(report: GenerationReport) -> None:
    def share(value: float | None) -> str | None:
        return None if value is None else f"{100 * value:.1f} %"

    print_facts(
        "generation",
        [
            ("model", report.model),
            ("device", report.device),
            ("cache format", report.cache),
            ("prompt tokens", report.prompt_tokens),
            ("tokens", report.tokens),
            ("tokens/s", report.tokens_per_s),
            ("time to first token, s", report.time_to_first_token_s),
            ("device cycles per token", report.cycles_per_token),
            ("bytes read from the array per token", report.array_bytes_per_token),
            ("  an FP16 cache would read", report.fp16_bytes_per_token),
            ("bits per cached element", report.bits_per_element),
            ("tokens that the float model ranks first", share(report.agreement)),
            ("mean absolute logit difference", report.mean_logit_difference),
            ("elements outside the calibrated range", report.saturated_elements),
        ],
    )
