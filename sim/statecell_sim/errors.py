"""Errors of the simulator."""

from __future__ import annotations

from statecell.errors import StatecellError


class SimulatorError(StatecellError):
    """The simulator cannot be built, or the simulated device broke a rule of its link."""


class ToolMissingError(SimulatorError):
    """A program that builds the simulator is not installed."""
