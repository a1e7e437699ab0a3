"""The attention bench against a scripted device whose cycles are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from numpy.typing import NDArray

from statecell.bench import attention
from statecell.link.framing import Request
from statecell.spec.commands import Opcode
from statecell.spec.geometry import Geometry, config

WRITE_CYCLES = 131


@dataclass
class Stamps:
    in_stamps: NDArray[np.uint64]
    out_stamps: NDArray[np.uint64]


class ScriptedTransport:
    last: Stamps | None = None


class ScriptedDevice:
    """Answers ATTEND over n rows with q queries after n + 80 + 4 q cycles, one every n + 8; later after APPEND."""

    def __init__(self, transport: ScriptedTransport) -> None:
        self.transport = transport
        self.geometry: Geometry = config("tiny")
        self._cycle = 0
        self._writing = 0
        self._rows = 0

    def __enter__(self) -> ScriptedDevice:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def reset(self) -> None:
        self._rows = 0

    def require(self, requests: Sequence[Request]) -> None:
        taken: list[int] = []
        given: list[int] = []
        for request in requests:
            self._cycle += 1
            taken.append(self._cycle)
            if request.opcode is Opcode.ATTEND:
                ready = self._cycle + self._rows + 80 + 4 * request.count + self._writing
                ready = max(ready, given[-1] + self._rows + 8) if given else ready
                given.append(ready)
                self._writing = 0
            else:
                given.append(self._cycle + 1)
                if request.opcode is Opcode.APPEND:
                    self._rows += request.count
                    self._writing = WRITE_CYCLES
        self._cycle = given[-1]
        self.transport.last = Stamps(np.array(taken, np.uint64), np.array(given, np.uint64))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedTransport:
    transport = ScriptedTransport()
    monkeypatch.setattr(attention, "open_transport", lambda url: transport)
    monkeypatch.setattr(attention, "Device", ScriptedDevice)
    return transport


@pytest.mark.parametrize("queries", [(1, 2), (2, 1)])
def test_cycles_do_not_depend_on_what_was_written_before(scripted: ScriptedTransport, queries: tuple[int, ...]) -> None:
    steps: list[tuple[int, int]] = []
    results = attention.bench_attention(
        "sim:tiny", rows=(16, 32), queries=queries, progress=lambda *step: steps.append(step)
    )
    assert [(r.rows, r.queries) for r in results] == [(rows, count) for rows in (16, 32) for count in queries]
    for result in results:
        assert result.latency_cycles == result.rows + 80 + 4 * result.queries
        assert result.interval_cycles == result.rows + 8
        assert result.lane_busy == result.rows / (result.rows + 8)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("rows", "queries", "reason"),
    [
        ((33,), (1,), "rows are 33: give 1 to 32"),
        ((0,), (1,), "rows are 0"),
        ((16,), (3,), "give 1 to 2"),
        ((), (1,), "none"),
    ],
)
def test_what_does_not_fit_is_refused(
    scripted: ScriptedTransport, rows: tuple[int, ...], queries: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(attention.BenchError, match=reason):
        attention.bench_attention("sim:tiny", rows=rows, queries=queries)
    assert scripted.last is None


def test_a_link_without_stamps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(attention.BenchError, match="does not count cycles"):
        attention.stamps(object())  # type: ignore[arg-type]
    monkeypatch.setattr(attention, "entry_points", lambda group: list[EntryPoint]())
    with pytest.raises(attention.BenchError, match="No installed package opens 'sim:tiny'"):
        attention.bench_attention("sim:tiny")


def test_the_configuration_of_a_head_dim() -> None:
    assert [config(attention.config_for(dim)).head_dim for dim in (32, 64, 128)] == [32, 64, 128]
    assert attention.config_for(64) == "smollm2"
    with pytest.raises(attention.BenchError, match="use one of 32, 64, 128"):
        attention.config_for(48)
