"""The twin test of a block, run by cocotb on the block's Verilog in Verilator instead of in Amaranth's simulator.

A twin test ends in `tests.hw.streams.simulate`. `record` lets it run as it is and notes which signals its benches use;
they become the ports of the Verilog. The cocotb test below runs the same function again, in the thread of a bridge,
with a `simulate` that plays the benches against those ports. The benches cannot tell the difference, so a block has one
description of its stalls, corner values and expected outputs, and two simulators that must agree with it.
"""

from __future__ import annotations

import importlib
import os
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cocotb
from amaranth.back import verilog
from amaranth.hdl import Const, ShapeCastable, Signal, Value
from amaranth.hdl._ast import SignalDict  # neither this nor the evaluator has a public name
from amaranth.sim._pyeval import eval_assign, eval_value  # type: ignore[import-untyped]
from cocotb.task import bridge, resume
from cocotb.triggers import Timer

from statecell.model.recurrent.mode import Rule
from statecell.spec.geometry import config
from tests.hw import streams

INDEX = "STATECELL_TWIN"  # variable of a run: the place of the twin test in TWINS
TOP = "twin"
Bench = Callable[[Any], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Twin:
    """One case of the twin test `test` of a block."""

    block: str
    test: str
    arguments: dict[str, Any]

    @property
    def function(self) -> Callable[..., None]:
        *packages, name = self.block.split(".")
        module = importlib.import_module(".".join(["tests", "hw", *packages, f"test_{name}"]))
        function: Callable[..., None] = getattr(module, f"test_{self.test}")
        return function


# A case with pauses on every elastic edge where the block has such edges.
TWINS = [
    Twin("link.crc", "equals_zlib_for_every_prefix", {"link_bytes": 4}),
    Twin("link.deframer", "every_frame_gives_its_verdict", {"link_bytes": 4, "pause": 0.4}),
    Twin("link.framer", "appends_the_crc", {"link_bytes": 8, "pause": 0.5}),
    Twin("link.answers", "answers_are_sent_and_sent_again", {"link_bytes": 4, "pause": 0.3}),
    Twin("link.cobs", "encodes_as_the_software", {"pause": 0.4}),
    Twin("link.cobs", "decodes_as_the_software", {"pause": 0.4}),
    Twin("link.intake", "each_command_passes_once_and_in_its_turn", {"link_bytes": 4, "pause": 0.3}),
    Twin("link.uart", "what_is_sent_is_received", {}),
    Twin("stage", "every_word_comes_out_once_and_in_order", {"pause": 0.5}),
    Twin("serial", "the_rate_changes_when_the_answer_is_out_and_a_break_brings_it_back", {}),
    Twin("control.bounds", "joins_and_checks_the_ranges", {"g": config("tiny2")}),
    Twin("control.checks", "random_headers_get_the_first_status_that_applies", {"name": "tiny"}),
    Twin("control.command", "commits_good_commands_only_and_waits_at_barriers", {}),
    Twin("control.counters", "counts_captures_and_clears", {"name": "tiny2"}),
    Twin("control.cursor", "finds_the_physical_rows", {"name": "tiny"}),
    Twin("control.drain", "joins_results_in_the_order_of_the_passes", {"name": "tiny2"}),
    Twin("control.ingest", "every_vector_is_whole_and_has_its_job", {"name": "tiny2", "pause": 0.3}),
    Twin("control.mapper", "writes_page_numbers_behind_the_mapped_ones", {"name": "tiny"}),
    Twin("control.passes", "starts_in_order_after_the_queries_and_drops_bad_ones", {"name": "tiny2"}),
    Twin("control.rawrows", "reads_key_and_value_rows_in_turn", {"name": "tiny"}),
    Twin("control.rawrows", "writes_whole_rows_only", {"name": "tiny"}),
    Twin("control.responder", "answers_in_order_with_the_right_payload", {"name": "tiny", "pause": 0.3}),
    Twin("control.slots", "holds_entries_and_closes_all_slots", {}),
    Twin("control.vectors", "vectors_reach_their_destination_rotated", {"name": "tiny", "pause": 0.7}),
    Twin("array.bank", "rows_come_back_with_their_fields_at_the_stated_times", {"name": "tiny2"}),
    Twin("array.dot", "dot_products_of_two_query_sets", {"name": "tiny2", "multiplier": "gated"}),
    Twin("array.rowmemory", "rows_are_read_at_the_stated_latency", {"count": 64}),
    Twin("array.rowstream", "rows_of_passes_in_order_without_bubbles_and_with_the_gap", {}),
    Twin("array.scale", "smallest_scale_equals_the_model_around_every_code", {}),
    Twin("small.alu", "every_operation_on_corners_and_random_words", {}),
    Twin("small.rowstore", "words_and_nibbles_at_the_address", {"count": 400}),
    Twin("small.machine", "random_programs_do_what_the_instructions_say", {"seed": 1}),
    Twin("small.cell", "a_conversation_equals_the_golden_device", {"pause": 0.3}),
    Twin("attention.accumulate", "sums_of_passes_and_their_capture", {"name": "tiny2", "multiplier": "gated"}),
    Twin("attention.normalise", "words_of_all_lanes", {"name": "tiny2", "stall": 0.5}),
    Twin("attention.score", "scores_of_passes_close_behind_each_other", {"name": "tiny", "lead": 3}),
    Twin("attention.softmax", "weights_steps_and_drops", {"name": "tiny"}),
    Twin("recurrent.ages", "ages_of_logged_tokens", {}),
    Twin("recurrent.backlog", "products_wait_for_their_shares", {}),
    Twin("recurrent.bankrows", "rows_of_both_kinds_go_both_ways", {"name": "tiny2", "halves": 2}),
    Twin("recurrent.choose", "scales_of_every_mode", {"name": "tiny", "times": 1}),
    Twin("recurrent.decays", "factors_of_slots", {"name": "recur32", "lanes": True, "decay_first": False}),
    Twin("recurrent.delay", "words_come_out_the_latency_later", {"latency": 7}),
    Twin("recurrent.energy", "energies_of_heads", {"name": "tiny"}),
    Twin("recurrent.error", "errors_and_outputs_of_both_rules", {}),
    Twin("recurrent.factor", "decayed_factors_and_their_reciprocals", {}),
    Twin("recurrent.fold", "gains_of_commits", {"name": "tiny", "lead": 13}),
    Twin("recurrent.gain", "gains_and_working_exponents", {"name": "bench64"}),
    Twin("recurrent.logger", "rows_of_tokens", {"name": "recur32"}),
    Twin("recurrent.lost", "octaves_of_slots", {}),
    Twin("recurrent.mix", "products_of_vectors", {"name": "tiny"}),
    Twin("recurrent.noise", "the_register_follows_the_model", {}),
    Twin("recurrent.opening", "modes_are_checked_and_unpacked", {"name": "recur32"}),
    Twin("recurrent.outputs", "outputs_of_heads_become_words", {"name": "recur32"}),
    Twin("recurrent.path", "rows_of_every_mode_equal_the_model", {
        "name": "tiny", "rule": Rule(delta=True), "lane_decay": False, "multiplier": "gated", "pause": 0.2}),
    Twin("recurrent.prepare", "operands_of_tokens", {
        "name": "recur32", "rule": Rule(decay_first=False), "lanes": True, "bonus": True}),
    Twin("recurrent.readout", "products_of_rows_with_both_vectors", {
        "name": "tiny2", "multiplier": "gated", "rotated": True}),
    Twin("recurrent.readpath", "outputs_and_errors_of_rows", {
        "name": "tiny", "rule": Rule(delta=True), "multiplier": "native", "halves": 2}),
    Twin("recurrent.requantise", "codes_of_every_mode", {"name": "tiny", "times": 1}),
    Twin("recurrent.share", "shares_of_channels", {"name": "tiny", "multiplier": "gated"}),
    Twin("recurrent.snapshot", "states_are_sent_and_set", {"name": "recur32", "link_bytes": 8}),
    Twin("recurrent.status", "registers_change_as_passes_land", {}),
    Twin("recurrent.tokens", "payloads_come_back_by_part", {"name": "recur32", "lanes": True}),
    Twin("recurrent.unit", "tokens_of_many_slots", {
        "name": "recur32", "rule": Rule(decay_first=False), "lane_decay": True, "tokens": 1, "logs": False,
        "multiplier": "native"}),
    Twin("recurrent.unit", "tokens_of_many_slots", {
        "name": "hybrid", "rule": Rule(delta=True), "lane_decay": False, "tokens": 3, "logs": True,
        "multiplier": "native"}),
    Twin("recurrent.update", "lanes_in_the_working_scale", {"name": "tiny", "multiplier": "gated"}),
    Twin("recurrent.walk", "rows_of_passes_follow_without_a_bubble", {"gap": 6}),
    Twin("recurrent.walk", "passes_of_a_log_and_commits", {}),
    Twin("recurrent.weigh", "products_with_factors", {}),
    Twin("recurrent.writepath", "rows_with_what_is_added", {
        "name": "tiny", "rule": Rule(delta=True), "multiplier": "native", "halves": 2}),
]


def record(case: Twin) -> str:
    """Run a twin test in Amaranth's simulator and return the Verilog of its design, ports in the order of first use."""
    designs = []
    signals = SignalDict()

    def simulate(dut: Any, *benches: Bench, background: Sequence[Bench] = (), **limits: int) -> int:
        def recorded(bench: Bench) -> Bench:
            async def run(ctx: Any) -> None:
                await bench(_Recorder(ctx, signals))

            return run

        cycles = streams.simulate(dut, *map(recorded, benches), background=[*map(recorded, background)], **limits)
        ports = {f"p{i}": (signal, None) for i, signal in enumerate(signals)}
        designs.append(str(verilog.convert(dut, name=TOP, ports=ports, emit_src=False, strip_internal_attrs=True)))
        return cycles

    with _simulated_by(case.function, simulate):
        case.function(**case.arguments)
    (design,) = designs
    return design


@cocotb.test()
async def twin(dut: Any) -> None:
    """The case that the environment names."""
    case = TWINS[int(os.environ[INDEX])]
    player = _Player(dut)
    with _simulated_by(case.function, player.simulate):
        await bridge(case.function)(**case.arguments)
    assert player.cycles, "the twin test simulated nothing"


@contextmanager
def _simulated_by(test: Callable[..., None], simulate: Callable[..., int]) -> Generator[None]:
    """Exchange the `simulate` that the module of a test uses."""
    before = test.__globals__["simulate"]
    test.__globals__["simulate"] = simulate
    try:
        yield
    finally:
        test.__globals__["simulate"] = before


def _signals(port: Any) -> list[Signal]:
    """The signals of a port, a part of one, or an expression of some."""
    value: Any = Value.cast(port)
    return list(value._rhs_signals())


class _Tick:
    """A wait for the next clock edge, with Amaranth's `sample`, `until` and `repeat`."""

    def __init__(self, wait: Callable[[tuple[Any, ...]], Awaitable[tuple[Any, ...]]], ports: tuple[Any, ...] = ()):
        self._wait = wait
        self._ports = ports

    def __await__(self) -> Generator[Any, Any, tuple[Any, ...]]:
        return self._wait(self._ports).__await__()

    def sample(self, *ports: Any) -> _Tick:
        return _Tick(self._wait, (*self._ports, *ports))

    async def until(self, condition: Any) -> tuple[Any, ...]:
        while True:
            _, _, *values, met = await self.sample(condition)
            if met:
                return tuple(values)

    async def repeat(self, count: int) -> tuple[Any, ...]:
        for _ in range(count):
            _, _, *values = await self
        return tuple(values)


class _Recorder:
    """Amaranth's context, noting every signal that a bench reads or writes."""

    def __init__(self, ctx: Any, signals: SignalDict) -> None:
        self._ctx = ctx
        self._signals = signals
        self._ticked = False

    def get(self, port: Any) -> Any:
        self._note(port)
        return self._ctx.get(port)

    def set(self, port: Any, value: Any) -> None:
        if self._ticked:  # before the first edge nothing has used the zero that a port of Verilog starts with
            late = [signal for signal in _signals(port) if signal not in self._signals]
            assert not any(signal.init for signal in late), "a port that starts at one is set too late"
        self._note(port)
        self._ctx.set(port, value)

    def tick(self) -> _Tick:
        return _Tick(self._sampled)

    async def _sampled(self, ports: tuple[Any, ...]) -> tuple[Any, ...]:
        for port in ports:
            self._note(port)
        self._ticked = True
        return tuple(await self._ctx.tick().sample(*ports))

    def _note(self, port: Any) -> None:
        for signal in _signals(port):
            if signal not in self._signals:
                self._signals[signal] = len(self._signals)


class _Player:
    """Plays the benches of a twin test against the recorded ports, as Amaranth's simulator does: in each cycle every
    bench runs in turn up to its next wait, and sees at once what it and those before it have set.
    """

    def __init__(self, dut: Any) -> None:
        self.cycles = 0
        self._pins = _Pins(dut)

    def simulate(
        self, dut: Any, *benches: Bench, background: Sequence[Bench] = (), max_cycles: int = streams.MAX_CYCLES
    ) -> int:
        """`tests.hw.streams.simulate`, in the thread of a bridge; the design is the one that was recorded."""
        self._pins.settle()
        awaited = [bench(self) for bench in benches]
        waiting = dict.fromkeys([*awaited, *(bench(self) for bench in background)], ())
        samples: dict[Any, Any] = dict.fromkeys(waiting)
        while not waiting.keys().isdisjoint(awaited):
            for bench in list(waiting):
                try:
                    waiting[bench] = bench.send(samples[bench])
                except StopIteration:
                    del waiting[bench]
            samples = {bench: (True, False, *map(self.get, ports)) for bench, ports in waiting.items()}
            self._pins.edge()
            self.cycles += 1
            assert self.cycles < max_cycles, f"no end after {max_cycles} cycles"
        return self.cycles

    def get(self, port: Any) -> Any:
        value = eval_value(self._pins, Value.cast(port))
        shape = port.shape()
        return shape.from_bits(value) if isinstance(shape, ShapeCastable) else value

    def set(self, port: Any, value: Any) -> None:
        shape = port.shape()
        value = shape.const(value) if isinstance(shape, ShapeCastable) else value
        eval_assign(self._pins, Value.cast(port), Const.cast(value).value)

    def tick(self) -> _Tick:
        return _Tick(self._sampled)

    async def _sampled(self, ports: tuple[Any, ...]) -> tuple[Any, ...]:
        for port in ports:  # the ports are numbered in the order in which benches name them
            for signal in _signals(port):
                self._pins.get_signal(signal)
        return await _next_edge(ports)


@types.coroutine
def _next_edge(ports: tuple[Any, ...]) -> Generator[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Wait for the edge; the player sends the values that the ports had before it."""
    return (yield ports)


class _Pins:
    """The recorded ports as Amaranth's evaluator wants its signals: slots, found by signal."""

    def __init__(self, dut: Any) -> None:
        self.slots: list[_Pin] = []
        self.pending: dict[Any, int] = {}
        self._dut = dut
        self._indices = SignalDict()
        self.settle = resume(self._settle)
        self.edge = resume(self._edge)

    def get_signal(self, signal: Signal) -> int:
        if signal not in self._indices:
            self._indices[signal] = index = len(self.slots)
            self.slots.append(_Pin(self, getattr(self._dut, f"p{index}"), signal))
        return int(self._indices[signal])

    async def _settle(self) -> None:
        for handle, value in self.pending.items():
            handle.value = value
        self.pending.clear()
        await Timer(1, "step")

    async def _edge(self) -> None:
        await self._settle()
        for level in (1, 0):
            if hasattr(self._dut, "clk"):  # a block without registers has none
                self._dut.clk.value = level
            await Timer(1, "step")


class _Pin:
    """One port; `curr`, `next`, `is_comb` and `update` are what the evaluator uses."""

    is_comb = False  # the recording has found any write to a driven signal

    def __init__(self, pins: _Pins, handle: Any, signal: Signal) -> None:
        assert len(handle) == len(signal), f"{handle._name} is not {signal.name}: the two simulations differ"
        self.next = 0
        self._pins = pins
        self._handle = handle
        self._signed = signal.shape().signed

    @property
    def curr(self) -> int:
        if self._pins.pending:
            self._pins.settle()
        value = self._handle.value
        return int(value.to_signed() if self._signed else value.to_unsigned()) if len(self._handle) > 1 else int(value)

    def update(self, value: int) -> None:
        self.next = value
        self._pins.pending[self._handle] = value % (1 << len(self._handle))
