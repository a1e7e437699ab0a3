"""Addresses of devices, checked without loading what is behind them."""

from __future__ import annotations

from importlib.metadata import entry_points

from statecell.link.errors import LinkError

TRANSPORTS = "statecell.transports"
"""Entry-point group of transports: the scheme of a URL names the function (rest of URL, timeout) -> Transport."""
MODEL_SCHEME = "model"
"""Scheme of the integer model, which no transport leads to."""


def check_address(url: str) -> None:
    """Raise LinkError, naming the known schemes, where `url` begins with none of them."""
    scheme, colon, _ = url.partition(":")
    known = {MODEL_SCHEME, *(point.name for point in entry_points(group=TRANSPORTS))}
    if not colon or scheme not in known:
        names = ", ".join(f"{name}:" for name in sorted(known))
        raise LinkError(f"{url!r} is not the address of a device: give one that begins with one of {names}.")
