"""Before torch is imported: one thread a process, because the tests run in parallel processes already."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
