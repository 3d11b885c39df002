"""The workload attention-cp from the command line: two ranks on a CPU, and a form whose rank dies."""

from __future__ import annotations

import json

from attnbench.cli import main

OWN = """
import os
import signal
from contextlib import contextmanager
from dataclasses import replace

from attnbench.backends.cp_ring import CpRing


class Dying(CpRing):
    name = "cp-dying"

    @contextmanager
    def session(self, case, inputs):
        with super().session(case, inputs) as launch:
            ranks = launch.forward.__self__.session.team._ranks

            def forward():
                os.kill(ranks[1]._process.pid, signal.SIGKILL)
                ranks[1]._process.wait()
                launch.forward()

            yield replace(launch, forward=forward)
"""


def test_ranks_are_timed_and_checked_and_one_that_dies_costs_its_own_row_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNBENCH_HISTORY", "off")
    (tmp_path / "own.py").write_text(OWN)
    words = ["compare", "--workload", "attention-cp", "--device", "cpu", "--warmup", "0", "--iterations", "2"]
    shape = ["--seqlen", "101", "--nheads", "3", "--headdim", "16", "--json", "run.json"]
    names = "cp-one,cp-ulysses,cp-dying,cp-ring,own.py"
    assert main([*words, *shape, "--backends", names]) == 0
    records = {one["backend"]: one for one in json.loads((tmp_path / "run.json").read_text())["records"]}
    assert {name: one["status"] for name, one in records.items()} == {
        "cp-one": "passed",
        "cp-ulysses": "skipped",
        "cp-dying": "crashed",
        "cp-ring": "passed",
    }
    assert records["cp-ulysses"]["reason"] == (
        "cp-ulysses: nheads=3 is not shared evenly by the ranks; a multiple of world=2"
    )
    assert "rank=1 of 2 on cpu crashed (SIGKILL)" in records["cp-dying"]["reason"]
    ring = records["cp-ring"]
    assert ring["time"]["timer"] == "reported"
    assert ring["phases"].keys() == {"exchange", "attention"}
    assert ring["counters"]["ranks"] == 2
    assert {"hidden_ms", "hidden_percent"} <= ring["counters"].keys()
    # Of both chunks of rank 1 (25 rows each) keys and values go to rank 0, in fp32.
    assert ring["counters"]["sent_mb"] == 50 * 3 * 16 * 2 * 4 / 1e6
    assert "1 of 1 sequences cut, 0+0 dealt whole; nothing padded" in ring["notes"]
    assert ring["speedup"]["baseline"] == "cp-one"
    assert "cp-dying" in capsys.readouterr().out
