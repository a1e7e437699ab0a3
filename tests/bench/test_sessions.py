from __future__ import annotations

from pathlib import Path

import pytest

from statecell.bench.sessions import resident_sessions
from statecell.runtime.errors import UnsupportedError
from tests.hybrid_folder import make_hybrid_folder
from tests.small_folder import make_folder


def test_pages_of_states_logs_and_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path / "cache"))
    folder = str(make_hybrid_folder(tmp_path / "small"))
    plain = resident_sessions(folder, state_format="int4", caches=2, tokens=100)
    # 4 heads of 64 rows; one KV head of 101 rows in each bank; a page has 16 rows of each bank
    assert (plain.state_pages, plain.log_pages, plain.cache_pages, plain.array_pages) == (8, 0, 7, 14)
    assert plain.resident == 1
    # one head of the four in two planes; logs of 8 tokens, k and d, two planes
    default = resident_sessions(folder, tokens=4096)
    assert (default.state_pages, default.log_pages, default.resident) == (2 * 3 + 4 + 4, 4, 4 * 257 // 14)
    with pytest.raises(UnsupportedError, match="has no recurrent states"):
        resident_sessions(str(make_folder(tmp_path / "llama")))
