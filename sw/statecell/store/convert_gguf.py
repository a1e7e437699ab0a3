"""A GGUF file as a Hugging Face model with float32 weights."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from statecell.store.errors import StoreError
from statecell.store.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer in a GGUF file: weights de-quantised to float32, evaluation mode.

    Takes tens of seconds for 135 M parameters. Raises StoreError if transformers cannot read the file.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        # The GGUF reader draws bars of its own on stderr, past transformers' switch.
        with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    except (OSError, ValueError, LookupError, struct.error, NotImplementedError) as error:
        raise StoreError(
            f"The GGUF file {path} cannot be opened ({_reason(error)}): give a file of an architecture that "
            "transformers reads, or a Hugging Face folder."
        ) from error
    # The loaded configuration still says that the weights are quantised, which makes save_pretrained refuse.
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    config = type(loaded.config)(**fields)
    model = type(loaded)(config)
    missing, unexpected = model.load_state_dict(loaded.state_dict(), strict=False, assign=True)
    model.tie_weights()
    if unexpected or any(name != "lm_head.weight" for name in missing):
        raise StoreError(f"The GGUF file {path} lacks weights of its architecture ({', '.join(missing)[:200]}).")
    return model.eval(), tokenizer


def _reason(error: Exception) -> str:
    """What transformers says of an architecture, or that the file is damaged: other errors are those of its parser."""
    said = (str(error).splitlines() or [""])[0]
    return said if "architecture" in said else "it is damaged or incomplete"


def convert_gguf(files: Sequence[Path], target: Path) -> None:
    """Write the GGUF file `files[0]` into the folder `target` as safetensors, configuration and tokenizer."""
    (path,) = files
    model, tokenizer = load_gguf(path)
    with quiet_transformers():
        model.save_pretrained(target)
    tokenizer.save_pretrained(target)
