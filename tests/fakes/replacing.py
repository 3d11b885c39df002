"""A backend for the CPU (for --backends) whose file changes the harness as soon as it is imported."""

from __future__ import annotations

import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cheating import ByHash

from attnbench.check import looks
from attnbench.measure.timers import wall

wall._timed = lambda call, stage: (call(), 1, 1)
wall.time = types.ModuleType("time")
looks.SLOWER["cpu"] = looks.RECORDED = 1e9


class ReplacesOnImport(ByHash):
    name = "replaces-on-import"
