"""Errors of the link between driver and device."""

from __future__ import annotations

from statecell.errors import StatecellError


class LinkError(StatecellError):
    """The link cannot be opened or does not carry frames."""


class LinkTimeout(LinkError):
    """The device did not answer in time."""


class SpecificationMismatch(LinkError):
    """Driver and device were made from different specifications."""


class PortError(LinkError):
    """The serial port is missing, in use, or cannot be set."""


class NoDeviceError(LinkError):
    """Nothing on the port speaks the device's protocol."""


class UnpluggedError(LinkError):
    """The serial port vanished while it was in use."""


class DeviceRestartedError(LinkError):
    """The board lost its state: it was reset, power-cycled or taken over since the link was opened."""
