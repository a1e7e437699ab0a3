"""Perplexity of llama.cpp's KV cache formats over the windows that `statecell eval ppl` uses, for README.md.

Not part of the project's environment: llama-cpp-python is built for minutes, so give it an environment of its own.

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" pip install llama-cpp-python numpy
    python tools/llama_cache_perplexity.py SmolLM2-135M-Instruct.Q4_1.gguf persuasion.txt --json
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from llama_cpp import GGML_TYPE_F16, GGML_TYPE_Q4_0, Llama

CACHES = {"f16": GGML_TYPE_F16, "q4_0": GGML_TYPE_Q4_0}


def perplexity(model: str, cache: int, text: bytes, tokens: int, window: int) -> float:
    """Perplexity of every token but the first of each window, each window in a fresh cache."""
    llama = Llama(model, n_ctx=window, n_batch=window, logits_all=True, type_k=cache, type_v=cache, flash_attn=True,
                  verbose=False)
    ids = llama.tokenize(text, add_bos=False)[:tokens]
    total, count = 0.0, 0
    for first in range(0, tokens, window):
        part = ids[first:first + window]
        llama.reset()
        llama.eval(part)
        logits = np.asarray(llama.scores[:window - 1], dtype=np.float64)
        top = logits.max(-1)
        chosen = logits[np.arange(window - 1), part[1:]]
        total += float((np.log(np.exp(logits - top[:, None]).sum(-1)) + top - chosen).sum())
        count += window - 1
    return math.exp(total / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("text", help="text file")
    parser.add_argument("--skip-bytes", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    text = Path(options.text).read_bytes()[options.skip_bytes:]
    found = {n: perplexity(options.model, c, text, options.tokens, options.window) for n, c in CACHES.items()}
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:6} {value:.4f}")


if __name__ == "__main__":
    main()
