from __future__ import annotations

from dataclasses import replace

import pytest

from statecell.device import ArrayFullError
from statecell.runtime.places import Places
from statecell.spec.geometry import config

G = replace(config("recur32"), slots=8, states=4, rows=40, page_rows=4)  # 10 pages


def test_rows_of_tokens_leave_the_slots_of_states_to_the_last() -> None:
    places = Places(G)
    assert places.take_slots(3) == [4, 5, 6] and places.through == 7
    assert places.take_states([1, 1, 1]) == [(0, 9), (1, 8), (2, 7)]
    assert places.take_slots(1) == [3]
    with pytest.raises(ArrayFullError, match=r"1 slots were asked for and 0 of the device's 8 are free"):
        places.take_slots(1)
    places.give_slots([5, 0])
    assert places.take_slots(2) == [5, 0]
    assert Places(config("tiny")).take_slots(4) == [0, 1, 2, 3]


def test_states_lie_in_runs_of_pages_and_all_of_a_group_fit_or_none() -> None:
    places = Places(G)
    assert places.take_states([3, 2]) == [(0, 7), (1, 5)] and places.take_pages(0, 2) == [0, 1]
    with pytest.raises(ArrayFullError, match="3 recurrent states were asked for and 2 of the 4 that the device"):
        places.take_states([1, 1, 1])
    with pytest.raises(ArrayFullError, match="needs 4 pages in a row and there are none among the 2 free ones"):
        places.take_states([1, 4])
    assert places.free_pages(0) == 3
    places.give_pages(0, [7, 8])  # 2, 3, 4 and 7, 8
    with pytest.raises(ArrayFullError, match="4 pages in a row and there are none among the 5 free"):
        places.take_states([4])
    assert places.take_states([3]) == [(2, 2)] and places.take_states([2]) == [(3, 7)]
    assert places.free_pages(0) == 0
