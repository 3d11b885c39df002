"""Links measured by real processes joined by gloo; ranks that die or hang; wrong commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.errors import Unavailable
from attnbench.machine import child, links
from attnbench.machine.device import CPU, Device
from attnbench.machine.links import Link, measure_links
from waiting import gone, until


def test_every_operation_between_two_processes(tmp_path, capsys):
    path = tmp_path / "links.json"
    assert main(["links", "--ranks", "2", "--sizes", "0.01,0.1", "--json", str(path)]) == 0
    told = json.loads(path.read_text())
    assert told["devices"] == ["cpu", "cpu"]
    found = [Link(**one) for one in told["links"]]
    assert [(one.operation, one.size_mb) for one in found] == [
        (operation, size) for operation in ("exchange", "all-to-all", "all-gather") for size in (0.01, 0.1)
    ]
    for one in found:
        assert one.median_ms > 0
        assert one.gbps == pytest.approx(one.size_mb * 2**20 / one.median_ms / 1e6)
    assert "all-gather" in capsys.readouterr().out


def test_what_is_measured_is_said_meanwhile(monkeypatch):
    monkeypatch.setattr(links, "PROGRESS_S", 0.0)
    said = []
    measure_links("x", [CPU, CPU], [0.01, 4.0], said.append)
    assert said[0].startswith("the ranks start, ")
    assert any(text.startswith("all-gather of 4 MiB, ") for text in said)
    assert {text.rpartition(", ")[0] for text in said} <= {
        "the ranks start",
        *(f"{one} of {size} MiB" for one in ("exchange", "all-to-all", "all-gather") for size in ("0.01", "4")),
    }


def test_a_sample_is_the_slowest_ranks_and_all_peers_count():
    answers = [
        {"exchange 16.0": [1.0, 5.0, 2.0], "all-gather 16.0": [3.0]},
        {"exchange 16.0": [4.0, 1.0, 1.0], "all-gather 16.0": [6.0]},
        {"exchange 16.0": [0.0, 0.0, 0.0], "all-gather 16.0": [1.0]},
    ]
    exchange, gather = links._links(answers, 3)
    assert exchange == Link("exchange", 16.0, 4.0, 16 * 2**20 / 4.0 / 1e6)
    assert gather == Link("all-gather", 16.0, 6.0, 2 * 16 * 2**20 / 6.0 / 1e6)


def test_a_rank_that_dies_or_hangs_is_named_and_the_others_are_ended(monkeypatch):
    monkeypatch.setattr(links, "MODULE", "attnbench.no_such_module")
    with pytest.raises(
        Unavailable, match=r"^x: device=cpu \(rank [01]\) ended the process with code 1: .*no_such_module"
    ):
        measure_links("x", [CPU, CPU], [1.0])
    monkeypatch.setattr(links, "MODULE", "attnbench.machine.link_rank")
    monkeypatch.setattr(links, "TIMEOUT_S", 0.05)
    with pytest.raises(
        Unavailable,
        match=r"^x: device=cpu \(rank 0\), cpu \(rank 1\) did not end within 0.05 s; every rank has to finish$",
    ):
        measure_links("x", [CPU, CPU], [1.0])


def test_a_rank_that_was_killed_is_named_where_another_has_ended_because_it_lost_it():
    lost = child.Answer(None, "ended the process with code 1: Connection closed by peer", 1.0, 1)
    killed = child.Answer(None, "crashed (SIGKILL)", 1.0, -9)
    with pytest.raises(Unavailable, match=r"^x: device=cuda:1 \(rank 1\) crashed \(SIGKILL\); every rank"):
        links._check("x", [Device("cuda", number) for number in range(3)], [lost, killed, None])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks 1", "--ranks=1 cannot be used; 2 to 64"),
        ("--ranks two", "--ranks=two cannot be used; 2 to 64"),
        ("--ranks 2 --gpus all", "--ranks=2 is for a CPU, --gpus for GPUs; one of the two"),
        ("--ranks 2 --sizes 0", "--sizes=0 cannot be used; MiB above 0, at most 4096, with commas"),
        ("--ranks 2 --sizes 1,nan", "--sizes=1,nan cannot be used; MiB above 0"),
        ("--gpus 0", "--gpus=0 is one GPU, which has no link; two or more"),
    ],
)
def test_mistakes(words, said, capsys, monkeypatch):
    monkeypatch.setattr("attnbench.machine.gpus.count_gpus", lambda: 2)
    assert main(["links", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"attnbench links: {said}")


def test_where_there_is_no_gpu_the_way_to_try_it_out_is_named(capsys, monkeypatch):
    monkeypatch.setattr("attnbench.machine.gpus.count_gpus", lambda: 0)
    assert main(["links"]) == 3
    assert capsys.readouterr().err.endswith("; --ranks 2, processes on the CPU\n")


def test_gpus_are_counted_from_the_command(monkeypatch):
    seen = []
    monkeypatch.setattr("attnbench.machine.gpus.count_gpus", lambda: 2)
    monkeypatch.setattr(links, "measure_links", lambda who, devices, sizes, _: seen.append((devices, sizes)) or [])
    assert main(["links", "--no-wait"]) == 0
    assert seen == [((Device("cuda", 0), Device("cuda", 1)), [1.0, 16.0, 256.0])]


def test_ranks_die_with_a_command_that_is_killed(tmp_path):
    words = [sys.executable, "-m", "attnbench", "links", "--ranks", "2", "--sizes", "4096"]
    command = subprocess.Popen(words, cwd=tmp_path, env=child.environment() | {"TMPDIR": str(tmp_path)})
    listed = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    try:
        # Once both have met: each rank has asked for the signal before.
        assert until(lambda: next(tmp_path.glob("*/store"), None))
        ranks = [int(one) for one in listed.read_text().split()]
        assert len(ranks) == 2
    finally:
        command.kill()
        command.wait()
    assert all(gone(pid) for pid in ranks)
