"""Shards from the command line, measured by a sweep that answers at once."""

from __future__ import annotations

import dataclasses
import re

from attnbench.record import Status
from attnbench.store.runfile import read, write


def test_shards_are_run_and_merged_and_a_stopped_one_is_told(attnbench, sweep, saved):
    line = "run quick --seqlen 16,32,64 --no-causal --backends eager,sdpa-math --device cpu --quiet --shard"
    for index in (1, 2):
        assert attnbench(f"{line} {index}/2").code == 0
    first, second = saved()
    assert read(first).shard.count == 2
    assert "--shard 1/2" in read(first).command or "--shard 2/2" in read(first).command
    answer = attnbench(["merge", str(first), str(second), "--out", "whole"])
    assert answer.code == 0, answer.err
    name = re.fullmatch(r"quick: 2 shards, 6 of 6 rows, written: (whole/\S+\.json)\n", answer.out)[1]
    whole = read(name)
    assert [group.case_id for group in whole.plan] == [f"b1-s{n}-h4-d64-fp32-fwd" for n in (16, 32, 64)]
    assert "--shard" not in whole.command
    assert attnbench(["show", name]).code == 0
    answer = attnbench(["merge", str(first)])
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "are not among them; all 2 shards" in answer.err
    answer = attnbench(["run", "--resume", str(first), "--shard", "1/2"])
    assert (answer.code, answer.err.count("takes the plan of that run, not --shard")) == (2, 1)


def test_a_plan_in_one_shard_is_merged_alone(attnbench, sweep, saved):
    assert attnbench("run quick --seqlen 16 --no-causal --backends eager --device cpu --quiet --shard 1/1").code == 0
    answer = attnbench(["merge", *map(str, saved()), "--no-save"])
    assert (answer.code, answer.out) == (0, "quick: 1 shard, 1 of 1 rows\n")


def test_rows_that_the_end_of_a_shard_interrupted_are_not_called_measured(attnbench, sweep, saved):
    words = "run quick --seqlen 16,32,64 --no-causal --backends eager,sdpa-math --device cpu --quiet --shard 1/1"
    assert attnbench(words).code == 0
    [path] = saved()
    run = read(path)
    *kept, short, cut = run.records
    short = dataclasses.replace(short, time=dataclasses.replace(short.time, stopped_by="interrupted"))
    reason = "interrupted by SIGTERM during sample; --resume measures it again"
    cut = dataclasses.replace(cut, status=Status.SKIPPED, reason=reason, time=None, speedup=None, rate=None)
    write(dataclasses.replace(run, records=(*kept, short, cut)), path)
    answer = attnbench(["merge", str(path), "--out", "the whole"])
    name = re.fullmatch(r"quick: 1 shard, 4 of 6 rows, written: (the whole/\S+\.json)\n", answer.out)[1]
    assert answer.err == f"attnbench merge: 2 rows are not measured; to finish: attnbench run --resume '{name}'\n"
