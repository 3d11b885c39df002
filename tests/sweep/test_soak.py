"""A round of the soak test: random kills and stops, nothing lost.  ATTNBENCH_SOAK_SECONDS=7200 runs for two hours."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak


def test_nothing_is_lost_and_nothing_grows(tmp_path):
    seed = random.randrange(2**32)
    told = soak.soak(float(os.environ.get("ATTNBENCH_SOAK_SECONDS", "0")), seed, tmp_path)
    assert f"seed {seed}" in told
