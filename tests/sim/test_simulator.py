"""The simulated link: frames, stamps, stalls, time-outs, faults of the design, waveforms, and the transport over it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.back import verilog as backend

from statecell.link.errors import LinkError, LinkTimeout
from statecell.link.transport import Transport
from statecell.spec.geometry import Geometry
from statecell_sim import simulator as simulator_module
from statecell_sim.builder import build_library
from statecell_sim.errors import SimulatorError
from statecell_sim.loopback import Loopback
from statecell_sim.simulator import Pauses, SimTransport, Simulator, open_transport

SEED = 11
WORD = 16

# Drops valid for a cycle after a word was not taken: against the stream rules.
UNSTABLE = """
module statecell(input clk, input rst, input [32:0] i__payload, input i__valid, output i__ready,
                 output [32:0] o__payload, output o__valid, input o__ready);
  reg waited = 0;
  always @(posedge clk) waited <= o__valid & ~o__ready;
  assign o__valid = i__valid & ~waited;
  assign i__ready = o__ready & ~waited;
  assign o__payload = i__payload;
endmodule
"""


def loopback_verilog(link_bytes: int) -> str:
    return str(backend.convert(Loopback(link_bytes=link_bytes), name="statecell", strip_internal_attrs=True))


@pytest.fixture(scope="module")
def library() -> Path:
    return build_library(loopback_verilog(WORD), WORD)


@pytest.fixture
def sim(library: Path) -> Iterator[Simulator]:
    simulator = Simulator(library)
    yield simulator
    simulator.close()


def frames(count: int, link_bytes: int = WORD, longest: int = 20) -> list[bytes]:
    rng = random.Random(SEED)
    return [rng.randbytes(link_bytes * rng.randrange(1, longest)) for _ in range(count)]


def test_frames_come_back_in_order_with_exact_stamps(sim: Simulator) -> None:
    sent = frames(50)
    start = sim.cycles
    result = sim.exchange(sent, timeout=30)
    assert result.frames == sent
    words = np.cumsum([len(frame) // WORD for frame in sent])
    # One word a cycle, back to back: the last word of a frame moves in the cycle that the words before it fix.
    assert result.in_stamps.tolist() == (start + words - 1).tolist()
    assert (result.out_stamps - result.in_stamps).tolist() == [Loopback.latency] * 50
    assert sim.waits == (0, 0)


def test_more_words_than_the_first_buffer_holds(sim: Simulator) -> None:
    assert sim.exchange([], responses=0, timeout=1).frames == []
    long = [bytes(WORD), random.Random(SEED).randbytes(WORD * 5000)]
    assert sim.exchange(long, timeout=30).frames == long


@pytest.mark.parametrize("idle", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("stall", [0.0, 0.3, 0.9])
def test_random_pauses_lose_nothing_and_repeat_with_the_seed(library: Path, idle: float, stall: float) -> None:
    sent = frames(20)
    stamps = []
    for _ in range(2):
        sim = Simulator(library, idle=Pauses(probability=idle, seed=1), stall=Pauses(probability=stall, seed=2))
        result = sim.exchange(sent, timeout=30)
        assert result.frames == sent
        stamps.append(result.out_stamps.tolist())
        words = sum(len(frame) // WORD for frame in sent)
        slowest = 1 / (1 - max(idle, stall))
        assert 0.6 * slowest * words < sim.cycles < 2.5 * slowest * words + 50
        sim.close()
    assert stamps[0] == stamps[1]


def test_pattern_pauses_follow_the_cycle(library: Path) -> None:
    sim = Simulator(library, stall=Pauses(pattern="1101"))
    result = sim.exchange([bytes(WORD)] * 10, timeout=30)
    assert {int(stamp) % 4 for stamp in result.out_stamps} == {2}
    sim.close()


def test_time_out_by_cycles_then_whole_frames_again(sim: Simulator) -> None:
    sent = frames(10)
    with pytest.raises(LinkTimeout, match=r"of 10 responses"):
        sim.exchange(sent, max_cycles=25)
    assert sim.exchange(sent[::-1], timeout=30).frames == sent[::-1]


def test_time_out_by_wall_clock_is_prompt(sim: Simulator) -> None:
    start = time.monotonic()
    with pytest.raises(LinkTimeout, match="1 of 2 responses"):
        sim.exchange([bytes(WORD)], responses=2, timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 5
    assert sim.exchange([bytes(WORD)], timeout=30).frames == [bytes(WORD)]


def test_cycle_limit_is_exact(sim: Simulator) -> None:
    start = sim.cycles
    with pytest.raises(LinkTimeout):
        sim.exchange([bytes(WORD)], responses=2, max_cycles=1000)
    assert sim.cycles == start + 1000


def test_frame_that_is_not_whole_words_is_refused(sim: Simulator) -> None:
    for bad in (b"", bytes(WORD - 1), bytes(WORD + 1)):
        with pytest.raises(ValueError, match="Frame 1 has"):
            sim.exchange([bytes(WORD), bad], timeout=1)
    assert sim.exchange([bytes(WORD)], timeout=30).frames == [bytes(WORD)]


def test_limits_are_required_and_pauses_are_checked(sim: Simulator) -> None:
    with pytest.raises(ValueError, match="might never end"):
        sim.exchange([bytes(WORD)])
    bad_pauses: list[dict[str, Any]] = [{"probability": 1.0}, {"pattern": "11"}, {"pattern": "012"}]
    for bad in bad_pauses:
        with pytest.raises(ValueError, match="must be"):
            Pauses(**bad)


def test_design_that_withdraws_a_word_is_reported() -> None:
    sim = Simulator(build_library(UNSTABLE, 4), stall=Pauses(pattern="10"))
    with pytest.raises(SimulatorError, match="changed or withdrew"):
        sim.exchange([bytes(4)] * 10, timeout=30)


@pytest.mark.parametrize("link_bytes", [2, 8])
def test_other_link_widths(link_bytes: int) -> None:
    sim = Simulator(build_library(loopback_verilog(link_bytes), link_bytes))
    assert sim.link_bytes == link_bytes
    sent = frames(20, link_bytes)
    assert sim.exchange(sent, timeout=30).frames == sent


def test_transport(sim: Simulator) -> None:
    transport = SimTransport(sim)
    assert isinstance(transport, Transport)
    sent = frames(5)
    assert transport.exchange(sent, timeout=30) == sent
    assert transport.last is not None
    assert len(transport.last.out_stamps) == 5
    transport.close()
    transport.close()
    with pytest.raises(LinkError, match="closed"):
        transport.exchange(sent, timeout=1)


def test_open_transport_parses_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"'nonsense': choose one of .*smollm2"):
        open_transport("nonsense", timeout=1)
    with pytest.raises(LinkError, match="only option is trace"):
        open_transport("?speed=3", timeout=1)
    asked = []

    def verilog(g: Geometry) -> str:
        asked.append(g.name)
        return loopback_verilog(WORD)

    monkeypatch.setattr(simulator_module, "verilog_of", verilog)
    file = tmp_path / "run.fst"
    for address in ("", f"smollm2?trace={file}"):
        transport = open_transport(address, timeout=1)
        sent = frames(3)
        assert transport.exchange(sent, timeout=30) == sent
        transport.close()
    assert asked == ["smollm2", "smollm2"]
    assert file.read_bytes()[0] == 0
    assert file.stat().st_size > 1000


def test_waveforms_that_cannot_be_written(library: Path, tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match="cannot be written"):
        Simulator(library, trace=tmp_path / "missing" / "x.fst")
    with pytest.raises(SimulatorError, match="without waveforms"):
        Simulator(library, trace=tmp_path / "x.fst")
