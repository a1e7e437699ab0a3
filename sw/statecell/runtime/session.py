"""A model, where its attention runs, and a conversation with it: what `statecell generate` and `chat` are made of."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from statecell.link.address import check_address
from statecell.model.recurrent.named import DEFAULT
from statecell.runtime.attention import Attachment, attach, detach
from statecell.runtime.cache import SlotCache
from statecell.runtime.engines import OpenedEngine, address_for, open_engine
from statecell.runtime.errors import NotFiniteError, UnsupportedError
from statecell.runtime.half import HalfCache, host_cache
from statecell.runtime.report import GenerationReport
from statecell.runtime.stream import TextStream
from statecell.runtime.support import context_of, model_geometry
from statecell.runtime.traffic import Traffic, bits_per_element
from statecell.store.models import load_model
from statecell.store.quiet import quiet_transformers

FORMATS = ("float", "fp16", "int8", "int4")
LEAST_TEMPERATURE = 0.01


class Session:
    """A model with its KV cache in an array (`int4`, `int8`) or on the host (`fp16`; `float` keeps the model's type).

    Recurrent states are in the array too, stored as `state_format` says (`default` or a name of `named.FORMATS`), with
    new scales every `recalibrate` tokens.
    Without a `device_url` the array is the simulator, or the integer model where there are recurrent states.

    One conversation: the cache keeps what was said, so `generate` processes only what is new. Use it as a context
    manager; `close` frees the slots and the device. `ids` are the tokens of the conversation so far.

    Raises UnknownNameError, StoreError and DownloadError for the model, UnsupportedError for the format or a model that
    the engine does not compute, and the device's own errors.
    """

    def __init__(self, model_name: str, device_url: str | None = None, cache_format: str = "int4",
                 state_format: str = DEFAULT, recalibrate: int | None = None) -> None:
        if cache_format not in FORMATS:
            raise UnsupportedError(f"The cache format '{cache_format}' is not known: use one of {', '.join(FORMATS)}.")
        on_host = cache_format in ("fp16", "float")
        if on_host and recalibrate is not None:
            raise UnsupportedError(f"With the cache format '{cache_format}' states are floats, and there is nothing to "
                                   "recalibrate: use int4 or int8.")
        if not on_host and device_url is not None:
            check_address(device_url)  # loading the model may take long
        loaded = load_model(model_name)
        self.name = loaded.name
        self.model: PreTrainedModel = loaded.model
        self.tokenizer: Any = loaded.tokenizer
        self.cache_format, self.state_format, self.recalibrate = cache_format, state_format, recalibrate
        self.device = "host"
        self.ids: list[int] = []
        self._source = model_name
        self._reference: PreTrainedModel | None = None
        self._opened: OpenedEngine | None = None
        self._attachment: Attachment | None = None
        self._traffic: Traffic | None = None
        if on_host:
            config = self.model.config.get_text_config(decoder=True)
            self._cache: Any = HalfCache(config) if cache_format == "fp16" else host_cache(config)
        else:
            self._attach(device_url)

    def _attach(self, device_url: str | None) -> None:
        shape = model_geometry(self.model)
        opened = open_engine(address_for(device_url, shape), shape.head_dim, states=shape.states is not None)
        try:
            self._attachment = attach(
                self.model, opened.engine, cache_format=self.cache_format, state_format=self.state_format,
                recalibrate=self.recalibrate,
            )
        except BaseException:
            opened.engine.close()
            raise
        self._opened = opened
        self._cache = self._attachment.new_cache()
        self._traffic = Traffic(opened.engine, shape, opened.geometry)
        self.device = opened.address

    def __enter__(self) -> Session:
        """The session itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.close()

    @property
    def context(self) -> int:
        """Most tokens that the model was made for."""
        return context_of(self.model)

    @property
    def calibration(self) -> str:
        """The calibration in force, for people."""
        if self._attachment is None:
            return "none needed"
        used = self._attachment.calibration
        return "neutral: no means, scales from the prompt" if used is None else f"means of {used.model} on {used.text}"

    def close(self) -> None:
        """Free the slots and close the device. A second call does nothing."""
        if self._attachment is not None and self._opened is not None:
            self._cache.close()
            detach(self.model)
            self._opened.engine.close()
            self._attachment = None

    def restart(self) -> None:
        """Forget the conversation: an empty cache, and its slots given back."""
        self.ids = []
        self._cache.reset()

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        on_text: Callable[[str], None] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        check: bool = True,
        stop_at_end: bool = True,
    ) -> GenerationReport:
        """Continue the conversation with `prompt` (text or token ids), up to `max_new_tokens` or the end token.

        `temperature` 0 takes the likeliest token, above 0 it samples with `seed`. `on_text` gets the text piece by
        piece, `on_prefill` (layers done, layers) while the prompt is processed. With `check` the float model reads the
        whole conversation afterwards and the report says how far it agrees.

        Raises UnsupportedError for an empty prompt, a negative temperature, fewer than one new token, or more tokens
        than the model's context holds, NotFiniteError where the model yields NaN or infinity, and the device's errors.
        The conversation is then as it was before the call; only where `SlotCache` says that it breaks must it be
        restarted.
        """
        ids = self.checked(prompt, max_new_tokens, temperature, seed)
        with self._unchanged_by_errors():
            return self._generate(ids, max_new_tokens, temperature, seed, on_text, on_prefill, check, stop_at_end)

    def _generate(
        self,
        ids: list[int],
        max_new_tokens: int,
        temperature: float,
        seed: int,
        on_text: Callable[[str], None] | None,
        on_prefill: Callable[[int, int], None] | None,
        check: bool,
        stop_at_end: bool,
    ) -> GenerationReport:
        generator = torch.Generator().manual_seed(seed)
        stored = self._cache.get_seq_length()
        self.ids += ids
        before = len(self.ids)
        pending = self.ids[stored:]
        stream = TextStream(self.tokenizer, on_text)
        rows: list[torch.Tensor] = []
        started = time.perf_counter()
        with _watched_layers(self.model, on_prefill):
            rows.append(self._forward(pending))
        first_token_s = time.perf_counter() - started
        if self._traffic is not None:
            self._traffic.start(before)
        while True:
            token = _choose(rows[-1], temperature, generator)
            self.ids.append(token)
            stream.put(token)
            if len(rows) == max_new_tokens or (stop_at_end and token in self._end_tokens()):
                break
            rows.append(self._forward([token]))
        seconds = time.perf_counter() - started
        stream.end()
        steps = len(rows) - 1
        spent = self._traffic.stop(before + steps) if self._traffic is not None and steps else None
        agreement, difference = self._compare(before, rows) if check else (None, None)
        stored = before + steps
        return GenerationReport(
            model=self.name,
            device=self.device,
            cache=self.cache_format,
            text=stream.text,
            prompt_ids=ids,
            ids=self.ids[before:],
            prompt_tokens=len(ids),
            tokens=len(rows),
            seconds=seconds,
            time_to_first_token_s=first_token_s,
            tokens_per_s=steps / (seconds - first_token_s) if steps else None,
            cycles_per_token=spent.cycles / steps if spent and spent.cycles is not None else None,
            array_bytes_per_token=spent.array_bytes / steps if spent else None,
            fp16_bytes_per_token=spent.fp16_bytes / steps if spent else None,
            bits_per_element=bits_per_element(
                self.cache_format, stored, self._opened.geometry if self._opened is not None else None
            ),
            agreement=agreement,
            mean_logit_difference=difference,
            saturated_elements=self._attachment.tally.saturated if self._attachment is not None else None,
        )

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Raises UnsupportedError for one that UTF-8 cannot express."""
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half a surrogate pair: Python's stand-in for a byte it cannot decode
            raise UnsupportedError(
                f"The text is not UTF-8 (at character {error.start}): give it in UTF-8, and check the locale."
            ) from error
        ids: list[int] = self.tokenizer(text, add_special_tokens=special_tokens)["input_ids"]
        return ids

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Take the conversation back to where it is now if the block raises."""
        told = len(self.ids)
        # A copy on the host costs little beside a model's pass, and a recurrent layer can go back in no other way.
        before = self._cache.checkpoint() if isinstance(self._cache, SlotCache) else copy.deepcopy(self._cache)
        try:
            yield
        except BaseException:
            del self.ids[told:]
            if not isinstance(self._cache, SlotCache):
                self._cache = before
            elif self._cache.state.fault is None:
                self._cache.go_back(before)
            raise

    def checked(
        self, prompt: str | Sequence[int], max_new_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[int]:
        """The token ids of a prompt that `generate` would take with these arguments. Raises UnsupportedError."""
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise UnsupportedError("The prompt has no tokens: give at least one word.")
        vocabulary = int(self.model.config.get_text_config(decoder=True).vocab_size)
        if not all(isinstance(i, int) and 0 <= i < vocabulary for i in ids):
            raise UnsupportedError(f"The prompt holds a token id that is not 0 to {vocabulary - 1}: encode it anew.")
        if not 0 <= seed < 1 << 63:
            raise UnsupportedError(f"The seed is {seed}: give 0 to 2^63 - 1.")
        if max_new_tokens < 1:
            raise UnsupportedError(f"The number of new tokens is {max_new_tokens}: give at least 1.")
        if temperature != 0 and not LEAST_TEMPERATURE <= temperature < float("inf"):
            raise UnsupportedError(
                f"The temperature is {temperature}: give 0 (likeliest token) or at least {LEAST_TEMPERATURE}."
            )
        wanted = len(self.ids) + len(ids) + max_new_tokens
        if wanted > self.context:
            raise UnsupportedError(
                f"The conversation would have {wanted} tokens, but the context of {self.name} holds {self.context}: "
                "shorten the prompt or ask for fewer new tokens."
            )
        return ids

    def _end_tokens(self) -> set[int]:
        end = self.model.generation_config.eos_token_id
        return set(end) if isinstance(end, list) else {end}

    def _forward(self, ids: Sequence[int]) -> torch.Tensor:
        """Process `ids` after what the cache holds; the logits [vocabulary] after the last of them."""
        with torch.inference_mode(), quiet_transformers():
            output = self.model(torch.tensor([list(ids)]), cache=self._cache, use_cache=True, logits_to_keep=1)
        row: torch.Tensor = output.logits[0, -1].float()
        if not bool(torch.isfinite(row).all()):
            raise NotFiniteError(
                f"{self.name} yields NaN or infinity where finite logits were expected: check its weights."
            )
        return row

    def _compare(self, before: int, rows: Sequence[torch.Tensor]) -> tuple[float, float]:
        """Agreement and mean absolute logit difference with float attention over the same tokens."""
        if self._reference is None:
            self._reference = load_model(self._source).model
        with torch.inference_mode(), quiet_transformers():
            ids = torch.tensor([self.ids[:-1]])
            float_rows = self._reference(ids, use_cache=False, logits_to_keep=len(rows)).logits[0].float()
        agreed = float_rows.argmax(-1) == torch.tensor(self.ids[before:])
        return agreed.float().mean().item(), (torch.stack(list(rows)) - float_rows).abs().mean().item()


def _choose(row: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(row.argmax())
    return int(torch.multinomial((row / temperature).softmax(-1), 1, generator=generator))


@contextmanager
def _watched_layers(model: PreTrainedModel, report: Callable[[int, int], None] | None) -> Iterator[None]:
    """Call `report(done, layers)` after each decoder layer while the block runs."""
    layers = list(getattr(model.get_decoder(), "layers", ())) if report is not None else []

    def watch(done: int) -> Callable[..., None]:
        return lambda *_: report(done, len(layers)) if report is not None else None

    handles = [layer.register_forward_hook(watch(number + 1)) for number, layer in enumerate(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
