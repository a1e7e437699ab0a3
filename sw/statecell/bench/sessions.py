"""How many conversations' recurrent states fit where a few KV caches do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from statecell.model.recurrent.mode import Mode
from statecell.runtime.engines import default_config
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent.calibration import known_states, plans
from statecell.runtime.recurrent.guards import guards_of
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.support import model_geometry
from statecell.spec.geometry import Geometry, config
from statecell.store.models import load_model

_BANKS = 2
_LOG_PLANES = 2


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Pages of an array that holds `caches` KV caches of `tokens` tokens of a model, and its states that fit instead.

    A page is `page_rows` addresses of both banks. `state_pages` counts the states of all heads with their logs.
    """

    model: str
    state: str
    caches: int
    tokens: int
    array_pages: int
    cache_pages: int
    state_pages: int
    log_pages: int
    resident: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def resident_sessions(model_name: str, *, state_format: str = "default", caches: int = 4,
                      tokens: int = 4096) -> Sessions:
    """States of a hybrid model in the room of `caches` KV caches. Raises UnsupportedError for another model."""
    loaded = load_model(model_name)
    shape = model_geometry(loaded.model)
    if shape.states is None:
        raise UnsupportedError(f"{loaded.name} has no recurrent states: use a hybrid model such as hybrid-tiny.")
    geometry = config(default_config(shape.head_dim))
    calibration = known_states(loaded.model)
    chosen = plans(shape.states, ModelStates(geometry), state_format, calibration, guards_of(loaded.model))
    modes = [mode for plan in chosen for mode in plan.modes]
    rows = tokens + 1  # the first token takes two
    cache = shape.layers * shape.kv_heads * _pages(_BANKS * rows, geometry)
    log = sum(_log_pages(mode, geometry, shape.states.channels) for mode in modes)
    state = log + sum(_pages(mode.planes * shape.states.channels, geometry) for mode in modes)
    return Sessions(model=loaded.name, state=state_format, caches=caches, tokens=tokens, array_pages=caches * cache,
                    cache_pages=cache, state_pages=state, log_pages=log, resident=caches * cache // state)


def _pages(rows: int, geometry: Geometry) -> int:
    """Pages for so many rows, which fill both banks."""
    return -(-rows // (_BANKS * geometry.page_rows))


def _log_pages(mode: Mode, geometry: Geometry, channels: int) -> int:
    """Pages of a head's log: k and d of each token between two write-backs, in two planes."""
    if mode.interval == 1:
        return 0
    rows_of_d = -(-channels // geometry.head_dim)
    return _pages(mode.interval * _LOG_PLANES * (1 + rows_of_d), geometry)
