"""Open an engine by address: a device behind any installed transport, or the integer model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statecell.device import Device
from statecell.link.address import MODEL_SCHEME, check_address
from statecell.runtime.device_engine import DeviceEngine
from statecell.runtime.engine import Engine
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.support import Geometry as ModelGeometry
from statecell.spec.fingerprint import fingerprint
from statecell.spec.geometry import CONFIGS, Geometry, config

# Which configuration an address without a name means, by the head_dim of the model that it is opened for.
DEFAULTS = {32: "glassllm", 64: "smollm2", 128: "wide128"}
# The same for a model with recurrent states.
STATEFUL = {32: "recur32", 64: "hybrid", 128: "recur128"}


@dataclass(frozen=True, kw_only=True)
class OpenedEngine:
    """An engine, the geometry behind it, and the full address that it was opened with."""

    engine: Engine
    geometry: Geometry
    address: str


def address_for(url: str | None, model: ModelGeometry) -> str:
    """The address to open for a model: `url`, or where it is None `sim:`, or `model:` for one with recurrent states."""
    return url or ("sim:" if model.states is None else f"{MODEL_SCHEME}:")


def default_config(head_dim: int, *, states: bool = False) -> str:
    """Name of the configuration for a model with this head_dim, and recurrent `states` or not.

    Raises UnsupportedError where there is none.
    """
    known = STATEFUL if states else DEFAULTS
    if head_dim not in known:
        raise UnsupportedError(
            f"The model has head_dim {head_dim}, and no device configuration has: use a model with one of "
            f"{', '.join(map(str, known))}."
        )
    return known[head_dim]


def open_engine(url: str, head_dim: int, *, states: bool = False) -> OpenedEngine:
    """The engine at `url`, for a model with `head_dim`, and recurrent `states` or not.

    `model:CONFIG` is the bit-exact integer model in PyTorch, `sim:CONFIG` the Verilated simulator, and installed
    transports add more. Without a CONFIG `model:` and `sim:` take the one for this model.

    Raises LinkError for a scheme that nothing installed provides, GeometryError for an unknown configuration,
    UnsupportedError where no configuration has this head_dim or a simulator is to be built without the states that the
    model needs, and what the transport raises.
    """
    check_address(url)
    scheme, _, rest = url.partition(":")
    if scheme in (MODEL_SCHEME, "sim") and not rest.partition("?")[0]:
        url = f"{scheme}:{default_config(head_dim, states=states)}{rest}"
        rest = url.partition(":")[2]
    if scheme == "sim" and states and not config(rest.partition("?")[0]).states:
        raise UnsupportedError(
            f"The model has recurrent states, which {url} cannot keep: use --device sim: or the integer model, "
            "--device model:."
        )
    if scheme == MODEL_SCHEME:
        geometry = config(rest)
        return OpenedEngine(engine=ModelEngine(geometry), geometry=geometry, address=url)
    device = Device.open(url)
    try:
        return OpenedEngine(engine=DeviceEngine(device), geometry=device.geometry, address=url)
    except BaseException:
        device.close()
        raise


def describe(url: str) -> dict[str, Any]:
    """What the device at `url` says about itself, as plain values. Raises as `open_engine`."""
    check_address(url)
    scheme, _, rest = url.partition(":")
    if scheme == MODEL_SCHEME:
        geometry = config(rest or DEFAULTS[64])
        facts: dict[str, Any] = {"kind": "integer model in PyTorch", **geometry.as_dict()}
    else:
        with Device.open(url) as device:
            geometry, info = device.geometry, device.info
        # The device does not know the name of its configuration, its address does.
        facts = {"kind": "device", **geometry.as_dict(), "protocol_version": info.version}
        facts["name"] = next((name for name, known in CONFIGS.items() if _same(known, geometry)), "unnamed")
        facts["build"] = f"{info.build_high:08x}{info.build_low:08x}"
    facts["bits_per_element"] = geometry.bits_per_element
    facts["tokens_per_slot"] = geometry.slot_rows
    facts["array_bytes"] = 2 * geometry.tiles * geometry.rows * geometry.row_bits // 8
    facts["fingerprint"] = f"{fingerprint():08x}"
    return facts


def _same(known: Geometry, found: Geometry) -> bool:
    """Alike but for the name, which a device does not know, and the clock, which is the board's."""
    free = {"name": "", "clock_hz": 0}
    return known.as_dict() | free == found.as_dict() | free
