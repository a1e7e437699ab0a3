"""What a board is to this project, and its top level: clock, reset, UART and status LEDs around the serial device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import io

from statecell.spec.geometry import Geometry, config
from statecell.spec.serial import SerialLink
from statecell_hw.array.multiply import Multiplier
from statecell_hw.serial import SerialTop


class ClockMaker(Protocol):
    """Makes the clock domain `sync` of ``clock_hz`` from the board's oscillator, in reset while ``reset`` is high."""

    def __call__(self, m: Module, platform: Any, clock_hz: int, reset: Signal) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board that the device is built for.

    Parameters
    ----------
    name: of the board and of its file; title: what people call it; part: the FPGA.
    configuration: name of the geometry that fits it; its clock is the clock that the design runs at, and the routed
      design must reach it.
    flow: tools that make the bitstream, a name in ``statecell_boards.bitstream.FLOWS``.
    platform: makes the Amaranth platform.
    clock: makes the clock domain.
    uart: number of the UART resource; resources: what the platform lacks and the board has.
    leds: resources of the status LEDs link, busy and error: name, number, subsignal or "".
    button: resource of the reset button: name and number.
    pnr: options of place and route that name the part; pack: options of the bitstream packer.
    floorplan: gives cells of the netlist their places on the FPGA.
    seeds: seeds of place and route to try, the best first.
    serial: buffers of the serial link.
    multiplier: forms of the array's multipliers.
    programmer: board name of openFPGALoader; load: its options beside board and file; interface: how the UART reaches
      the host.
    """

    name: str
    title: str
    part: str
    configuration: str
    flow: str
    platform: Callable[[], Any]
    clock: ClockMaker
    leds: tuple[tuple[str, int, str], tuple[str, int, str], tuple[str, int, str]]
    button: tuple[str, int]
    programmer: str
    interface: str
    uart: int = 0
    resources: tuple[Any, ...] = ()
    pnr: tuple[str, ...] = ()
    pack: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    floorplan: Callable[[dict[str, Any]], int] | None = None
    seeds: tuple[int, ...] = (1, 2, 3)
    serial: SerialLink = field(default_factory=SerialLink)
    multiplier: Multiplier = "gated"

    @property
    def geometry(self) -> Geometry:
        """The configuration's geometry."""
        return config(self.configuration)

    @property
    def clock_hz(self) -> int:
        """Clock that the design runs at, in hertz."""
        return self.geometry.clock_hz


class BoardTop(Elaboratable):
    """Top level of a board: the serial device with its pins.

    The reset button and the time until the clock is stable reset everything; LEDs: a session runs, a command is under
    way, something damaged came since the last good frame. The error LED also lights while the device is in reset.
    """

    def __init__(self, board: Board, *, build_hash: int) -> None:
        self.board = board
        self.device = SerialTop(
            board.geometry, clock_hz=board.clock_hz, link=board.serial, build_hash=build_hash,
            multiplier=board.multiplier,
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        board, device = self.board, self.device
        m.submodules.device = device
        reset = Signal()
        m.submodules.button = button = io.Buffer(io.Direction.Input, platform.request(*board.button, dir="-"))
        m.d.comb += reset.eq(button.i)
        board.clock(m, platform, board.clock_hz, reset)
        uart = platform.request("uart", board.uart, dir="-")
        m.submodules.rx = rx = io.Buffer(io.Direction.Input, uart.rx)
        m.submodules.tx = tx = io.Buffer(io.Direction.Output, uart.tx)
        m.d.comb += [device.rx.eq(rx.i), tx.o.eq(device.tx)]
        ports: dict[tuple[str, int], Any] = {}
        for (name, number, part), state in zip(board.leds, (device.link, device.busy, device.error), strict=True):
            if (name, number) not in ports:
                ports[name, number] = platform.request(name, number, dir="-")
            port = ports[name, number]
            led = io.Buffer(io.Direction.Output, getattr(port, part) if part else port)
            m.submodules[f"led_{name}_{number}_{part}"] = led
            m.d.comb += led.o.eq(state)
        return m
