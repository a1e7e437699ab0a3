"""A random hybrid model of bytes, exported as a training exports one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from statecell.train import export
from statecell.train.pretrain import random_model
from tests.train.small import recipe, text


def make_hybrid_folder(folder: Path) -> Path:
    """Write it into `folder`, calibrated on an easy text; its weights are the same every time."""
    model = random_model(recipe()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 8  # so that the layers decide which byte wins
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "text_bytes", lambda _: text()[:512])
        export.export(model, folder, "small", {"seed": 0})
    return folder
