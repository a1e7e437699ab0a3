"""Static timing of a netlist of standard cells with OpenSTA, which is on PATH or fetched as a Debian package."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from statecell.store.deb import deb_files
from statecell.store.download import apt_download
from statecell.store.paths import libraries_folder, whole_folder
from statecell_boards.asic.synthesis import CELLS, MEMORIES, TOP
from statecell_boards.errors import BoardError
from statecell_boards.tools import run

PROGRAM = "sta"
PACKAGE = "opensta"
VERSION = "0~20191111gitc018cb2+dfsg-1"
_DEB_BYTES = 809_088
_DEB_SHA256 = "a7e48ea4fb0c3d96c3cf9f65514f6d5e557ebbd6f4a4b9017c6b511b117c7dbc"
_MACHINE, _ARCHITECTURE = "x86_64", "amd64"
INSTALL = "run `apt-get install opensta`, or give --area-only"
START_S = 30
SCRIPT = f"""\
read_liberty {CELLS}
read_liberty {MEMORIES}
read_verilog {TOP}.v
link_design {TOP}
create_clock -name clk -period {{period}} [get_ports clk]
report_checks -path_delay max -format full -digits 3
report_worst_slack
"""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The longest path between registers or memories, gates and their pins only, without wires.

    ``start`` and ``end`` are the instances' paths, ``cells`` the cells between them; ``delay_ns`` with the register's
    setup, so that ``fmax_mhz`` is its inverse.
    """

    start: str
    end: str
    cells: int
    delay_ns: float

    @property
    def fmax_mhz(self) -> float:
        """Fastest clock, MHz."""
        return 1000 / self.delay_ns


def find_sta() -> Path:
    """OpenSTA: on PATH, else fetched into the user cache. Raises BoardError if it is not there or cannot run here."""
    installed = shutil.which(PROGRAM)
    program = Path(installed) if installed else _fetched()
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=START_S, check=False)
        reason = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        raise BoardError(f"OpenSTA does not run here ({reason}): {INSTALL}.")
    return program


def analyse(sta: Path, folder: Path, *, period_ns: float) -> Timing:
    """Timing of the netlist that `synthesise` left in ``folder``. Raises BoardError if OpenSTA fails."""
    (folder / "timing.tcl").write_text(SCRIPT.format(period=period_ns))
    run("asic: timing", [str(sta), "-no_splash", "-exit", "timing.tcl"], folder, "timing.txt")
    return parsed((folder / "timing.txt").read_text(), period_ns=period_ns)


def parsed(report: str, *, period_ns: float) -> Timing:
    """What OpenSTA reported for a clock period. Raises BoardError for errors and where there is no path."""
    errors = re.findall(r"^Error: (.*)$", report, re.MULTILINE)
    if errors:
        raise BoardError(f"OpenSTA could not read the netlist: {' | '.join(errors[:3])}.")
    ends = [re.search(rf"^{word}: (\S+)", report, re.MULTILINE) for word in ("Startpoint", "Endpoint")]
    slack = re.search(r"^worst slack (\S+)", report, re.MULTILINE)
    start, end = ends
    if start is None or end is None or slack is None:
        raise BoardError("OpenSTA found no path between two registers: the design has none, or no clock `clk`.")
    # a line of the path is delay, time, edge, pin and cell; clock lines name no cell of their own
    steps = re.findall(r"^ +\S+ +\S+ [v^] (\S+)/\w+(?:\[\d+\])? \(", report, re.MULTILINE)
    between = {step for step in steps if step not in (start[1], end[1])}
    return Timing(start=start[1], end=end[1], cells=len(between), delay_ns=round(period_ns - float(slack[1]), 3))


def _fetched() -> Path:
    """The program in the user cache, downloaded if it is missing."""
    if platform.machine() != _MACHINE:
        raise BoardError(f"OpenSTA is not installed: {INSTALL}.")
    program = libraries_folder() / PACKAGE / PROGRAM
    if not program.is_file():
        with whole_folder(program.parent) as folder:
            deb = f"{PACKAGE}_{VERSION}_{_ARCHITECTURE}.deb"
            package = apt_download(PACKAGE, VERSION, deb, _DEB_BYTES, _DEB_SHA256, folder, instead=INSTALL)
            (folder / PROGRAM).write_bytes(deb_files(package.read_bytes(), [f"./usr/bin/{PROGRAM}"])[0])
            (folder / PROGRAM).chmod(0o755)
            package.unlink()
    return program
