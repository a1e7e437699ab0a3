"""`statecell info`: what a device says about itself."""

from __future__ import annotations

from typing import Any

from statecell.cli.output import DeviceOption, JsonOption, print_facts, print_json


def info(device: DeviceOption = "sim:", as_json: JsonOption = False) -> None:
    """Print a device's geometry, limits, clock, build hash and specification fingerprint.

    Example: statecell info --device sim:tiny
    """
    from statecell.runtime.engines import describe

    facts: dict[str, Any] = describe(device)
    print_json(facts) if as_json else print_facts(f"device {device}", facts.items())
