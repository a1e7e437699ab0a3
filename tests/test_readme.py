"""The Python examples of README.md run as they stand (the one for the array), or at least name things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


def test_array_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(example for example in EXAMPLES if "sim:tiny" in example)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("(2, 32) [")


@pytest.mark.model
def test_model_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from statecell.store.models import is_fetched

    if not is_fetched("smollm2-135m"):
        pytest.skip("statecell models fetch smollm2-135m")
    code = next(example for example in EXAMPLES if "smollm2-135m" in example)
    exec(compile(code.replace("max_new_tokens=16", "max_new_tokens=2"), "README.md", "exec"), {})
    assert "The sea was" in capsys.readouterr().out


def test_make_targets_exist() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"README names `make {target}`, the Makefile has none"
