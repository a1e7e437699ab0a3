"""Calibrations on disk: named arrays and facts in one safetensors file of a stated format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from statecell.runtime.errors import CalibrationError


def save_arrays(path: Path, file_format: str, arrays: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write the file. The folder is made if missing; an older file is replaced only once the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    whole = {name: array.contiguous() for name, array in arrays.items()}
    save_file(whole, part, metadata={"format": file_format, "facts": json.dumps(facts, sort_keys=True)})
    part.replace(path)


def load_arrays(path: Path, file_format: str, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the arrays as float32 tensors, the facts). Raises CalibrationError for a damaged file or another format."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != file_format:
                raise CalibrationError(
                    f"{path} is not a calibration ({file_format} was expected); make one with "
                    "`statecell calibrate`"
                )
            arrays = {name: file.get_tensor(name).to(torch.float32) for name in names}
            return arrays, json.loads(metadata["facts"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CalibrationError(f"{path} cannot be read as a calibration ({error}); make a new one") from error
