"""The cache formats that evaluations compare, each as a cache maker for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from statecell.evaluate.naive import NaiveCache, naive_bits
from statecell.link.address import check_address
from statecell.runtime.attention import attach, detach
from statecell.runtime.engines import open_engine
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.half import HalfCache, host_cache
from statecell.runtime.support import model_geometry
from statecell.runtime.traffic import bits_per_element

HOST_FORMATS = ("float", "fp16", "naive-int4")
ARRAY_FORMATS = ("int8", "int4")
FORMATS = (*HOST_FORMATS, *ARRAY_FORMATS)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a model's keys and values are: `address` of the engine or `host`, a maker of empty caches, and `bits`, the
    stored bits per element of a sequence of so many tokens.
    """

    address: str
    new_cache: Callable[[], Any]
    bits: Callable[[int], float]


def check_formats(cache_formats: Iterable[str], device_url: str) -> None:
    """Raise UnsupportedError for a format that is not known, LinkError for an address that is needed and is none."""
    for name in cache_formats:
        if name not in FORMATS:
            raise UnsupportedError(f"The cache format '{name}' is not known: use one of {', '.join(FORMATS)}.")
        if name in ARRAY_FORMATS:
            check_address(device_url)


@contextmanager
def using(model: Any, cache_format: str, device_url: str) -> Iterator[Place]:
    """Give `model` the format while the block runs; pass `place.new_cache()` as `cache=` in every forward pass.

    `float` keeps the model's own type, `fp16` stores float16, `naive-int4` is what most 4-bit caches do (no rotation,
    no means, one scale per vector), `int8` and `int4` are the array's, at `device_url`.

    Raises UnsupportedError for another format or a model that the engine does not compute, and the device's errors.
    """
    check_formats([cache_format], device_url)
    shape = model_geometry(model)
    if cache_format in HOST_FORMATS:
        text = model.config.get_text_config(decoder=True)
        makers: dict[str, Callable[[], Any]] = {
            "float": lambda: host_cache(text),
            "fp16": lambda: HalfCache(text),
            "naive-int4": lambda: NaiveCache(text),
        }

        def host_bits(tokens: int) -> float:
            naive = cache_format == "naive-int4"
            return naive_bits(shape.head_dim) if naive else bits_per_element(cache_format, tokens, None)

        yield Place(address="host", new_cache=makers[cache_format], bits=host_bits)
        return
    opened = open_engine(device_url, shape.head_dim, states=shape.states is not None)
    try:
        attachment = attach(model, opened.engine, cache_format=cache_format)
        try:
            yield Place(
                address=opened.address,
                new_cache=attachment.new_cache,
                bits=lambda tokens: bits_per_element(cache_format, tokens, opened.geometry),
            )
        finally:
            detach(model)
    finally:
        opened.engine.close()
