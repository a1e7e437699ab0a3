"""The plots of the documentation, drawn the same whenever the measurements are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

_SETTINGS: Any = {
    "svg.hashsalt": "statecell",  # otherwise every drawing gets new identifiers
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

_LOST = 10.0
"""Relative error from which a state is lost, however far it goes: the top of the plot of drift."""


def perplexity(rows: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """Increase of perplexity over float attention against stored bits per element; `path` without extension.

    Each row has cache, bits_per_element, ppl and ppl_reference. Returns the files written.
    """
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axes = figure.subplots()
        for row in rows:
            percent = 100 * (row["ppl"] / row["ppl_reference"] - 1)
            ours = row["cache"] in ("int4", "int8")
            axes.plot(row["bits_per_element"], percent, "o" if ours else "s", color="C0" if ours else "C7")
            axes.annotate(f"{row['cache']}  {percent:+.1f} %", (row["bits_per_element"], percent),
                          textcoords="offset points", xytext=(7, 4))
        axes.set_xlabel("bits per cached element, scales included")
        axes.set_ylabel("perplexity over float attention, %")
        axes.set_xlim(3, 19)
        return _save(figure, path)


def cycles(rows: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """Latency and interval of an attention command against its rows, with the ideal line of one row a cycle.

    Each row has rows, queries, latency_cycles and interval_cycles. Returns the files written.
    """
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axes = figure.subplots()
        counts = sorted({row["rows"] for row in rows})
        axes.plot(counts, counts, "--", color="C7", label="ideal: one row a cycle")
        for color, queries in enumerate(sorted({row["queries"] for row in rows})):
            part = sorted((row for row in rows if row["queries"] == queries), key=lambda row: row["rows"])
            for name, mark in (("latency_cycles", "o-"), ("interval_cycles", "x:")):
                label = f"{name.removesuffix('_cycles')}, {queries} {'query' if queries == 1 else 'queries'}"
                axes.plot(
                    [row["rows"] for row in part], [row[name] for row in part], mark, color=f"C{color}", label=label
                )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlabel("rows in the slot")
        axes.set_ylabel("cycles")
        axes.legend(frameon=False)
        return _save(figure, path)


def drift(rows: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """Error of the read-outs against the token for each storage mode, left of the slowest head and right of all heads.

    Each row has mode, head, decay, bits_per_element and read_error {token: error}. Returns the files written.
    """
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        slow, every = figure.subplots(1, 2, sharey=True)
        slowest = max(rows, key=lambda row: row["decay"])
        names = list(dict.fromkeys(row["mode"] for row in rows))
        least = min(error for row in rows for error in row["read_error"].values())
        lines: list[Any] = []
        for color, name in enumerate(names):
            mine = [row for row in rows if row["mode"] == name]
            tokens = [int(t) for t in mine[0]["read_error"]]
            style = "--" if name.startswith("naive") else "-"
            mark = "os^v"[color // 3 % 4]
            line: Any = {"color": mpl.colormaps["tab20"](color), "linestyle": style, "marker": mark, "markersize": 4}
            head = next(row for row in mine if row["head"] == slowest["head"])
            slow.plot(tokens, list(head["read_error"].values()), **line)
            errors = zip(*(row["read_error"].values() for row in mine), strict=True)
            bits = sum(row["bits_per_element"] for row in mine) / len(mine)
            rms = [(sum(e * e for e in column) / len(mine)) ** 0.5 for column in errors]
            label = f"{name}, {bits:.3g} bits" + (" (off the scale)" if min(rms) > _LOST else "")
            lines += every.plot(tokens, rms, label=label, **line)
        slow.set_title(f"slowest head, decay {slowest['decay']:.5g}", fontsize=10)
        every.set_title("all heads, root mean square", fontsize=10)
        for axes in (slow, every):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_ylim(least / 1.5, _LOST)
            axes.set_xlabel("token")
        slow.set_ylabel("relative error of the read-outs")
        figure.legend(handles=lines, frameon=False, loc="outside right upper")
        return _save(figure, path)


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    figure.savefig(files[0], dpi=150, metadata={"Software": None})
    figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files
