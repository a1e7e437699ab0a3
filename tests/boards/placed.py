"""Placed ECP5 cells, as nextpnr writes them."""

from __future__ import annotations

from typing import Any

CLOCK = 1


def _cell(kind: str, tile: tuple[int, int], place: str, ports: dict[str, list[int]], outs: tuple[str, ...],
          parameters: dict[str, str]) -> dict[str, Any]:
    return {
        "type": kind, "parameters": parameters,
        "attributes": {"NEXTPNR_BEL": f"X{tile[0]}/Y{tile[1]}/SLICE{place}", "BEL_STRENGTH": "001"},
        "port_directions": {port: "output" if port in outs else "input" for port in ports}, "connections": ports,
    }


def register(tile: tuple[int, int], place: str, *, out: int, data: tuple[int, str], enable: int | None = None,
             clear: int | None = None) -> dict[str, Any]:
    """A register; `data` is the net and the pin, M or, behind the table of the same lane, DI."""
    ports = {"Q": [out], "CLK": [CLOCK], data[1]: [data[0]]}
    if enable is not None:
        ports["CE"] = [enable]
    if clear is not None:
        ports["LSR"] = [clear]
    return _cell("TRELLIS_FF", tile, place, ports, ("Q",), {"CEMUX": "1 " if enable is None else "CE"})


def comb(tile: tuple[int, int], place: str, *, out: int, ins: list[int]) -> dict[str, Any]:
    """A look-up table."""
    ports = {"F": [out], **{port: [net] for port, net in zip("ABCD", ins, strict=False)}}
    return _cell("TRELLIS_COMB", tile, place, ports, ("F",), {})


def module(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A module of cells."""
    return {"cells": cells, "netnames": {}, "ports": {}}
