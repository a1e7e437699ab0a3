from __future__ import annotations

from dataclasses import replace

import pytest

from statecell.spec.geometry import config
from statecell_boards.context import MODELS, tokens
from statecell_boards.registry import BOARDS, board

SMOLLM2 = MODELS["smollm2-135m"]


def test_tokens_are_whole_pages_less_the_first_tokens_second_row() -> None:
    g = replace(config("bench64"), rows=4096, slots=90, page_rows=4, pages_per_slot=64)
    assert tokens(g, SMOLLM2) == 4096 // 4 // 90 * 4 - 1
    assert tokens(replace(g, pages_per_slot=8), SMOLLM2) == 8 * 4 - 1
    assert tokens(replace(g, tiles=2), SMOLLM2) == 4096 // 4 // 45 * 4 - 1


def test_what_does_not_fit_has_no_tokens() -> None:
    assert tokens(replace(config("bench64"), slots=89), SMOLLM2) == 0
    assert tokens(config("tiny"), SMOLLM2) == 0
    assert tokens(replace(config("bench64"), slots=96, rows=64), SMOLLM2) == 0


@pytest.mark.parametrize("name", BOARDS)
def test_every_board_has_a_configuration_with_its_clock_and_room_for_a_model(name: str) -> None:
    chosen = board(name)
    assert chosen.name == name and chosen.clock_hz == chosen.geometry.clock_hz > 0
    assert any(tokens(chosen.geometry, shape) for shape in MODELS.values())
