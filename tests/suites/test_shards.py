"""A plan cut into shards and merged again is the same plan."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.errors import UsageError
from attnbench.record import Environment, Record, Status
from attnbench.store.merging import merge
from attnbench.store.runfile import dumps, loads
from attnbench.suites.shards import shard_of
from attnbench.workloads.base import load_workload

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

from small_runs import small_run

LINUX = Environment(os="Linux", python="3.11", gpu_uuid="GPU-0")


def measured(run, number=0):
    """All of a run passed, on a machine of its own."""
    records = tuple(
        Record(
            workload=group.workload,
            case=group.case,
            case_id=group.case_id,
            group=group.group,
            backend=name,
            replicate=group.replicate,
            status=Status.PASSED,
            environment=1,
        )
        for group in run.plan
        for name in group.backends
    )
    own = dataclasses.replace(LINUX, gpu_uuid=f"GPU-{number}")
    return dataclasses.replace(run, records=records, environments=(LINUX, own), id=f"{number:08x}")


def shards(run, count):
    cut = [measured(shard_of("x", run, f"{index}/{count}"), index) for index in range(1, count + 1)]
    return [(f"{one.id}.json", loads(dumps(one))) for one in cut]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.randoms())
@settings(max_examples=40, deadline=None)
def test_what_is_cut_and_merged_is_the_whole(cases, count, replicates, lots):
    run = small_run(*[["honest", "x"]] * cases, replicates=replicates)
    if count > cases:
        with pytest.raises(UsageError, match=rf"^x: --shard=1/{count} is one of more shards than cases \({cases} case"):
            shard_of("x", run, f"1/{count}")
        return
    parts = shards(run, count)
    lots.shuffle(parts)
    whole = merge(parts, run_id="0000000f")
    assert whole.plan == run.plan
    assert [(one.group, one.backend) for one in whole.records] == [
        (group.group, name) for group in run.plan for name in group.backends
    ]
    assert whole.shard is None
    for name, part in parts:
        own = {group.case_id for group in part.plan}
        assert own, "nobody is idle"
        there = [one for one in whole.records if one.case_id in own]
        assert {whole.environments[one.environment].gpu_uuid for one in there} == {f"GPU-{int(name[:8], 16)}"}


def test_shards_have_about_the_same_work():
    workload = load_workload("attention")
    run = small_run(*[["x"]] * 8)
    sizes = [64, 64, 64, 64, 128, 128, 256, 2048]
    plan = []
    for group, size in zip(run.plan, sizes, strict=True):
        case = workload.case({"batch": 1, "seqlen": size, "nheads": 1, "headdim": 8, "dtype": "fp32"})
        plan.append(dataclasses.replace(group, case=case.to_dict(), case_id=group.group))
    cut = [shard_of("x", dataclasses.replace(run, plan=tuple(plan)), f"{index}/2") for index in (1, 2)]
    assert [len(one.plan) for one in cut] == [1, 7], "the longest by itself"


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2", "1/0", "1/99999"])
def test_what_is_no_shard(text):
    with pytest.raises(UsageError, match=rf"^x: --shard={text} is no shard; I/N, such as 2/5: the second of five$"):
        shard_of("x", small_run(["x"]), text)


def test_what_does_not_belong_together_is_refused_in_one_line():
    run = small_run(["x"], ["x"], ["x"])
    first, second, third = shards(run, 3)
    other = small_run(["x"], ["x"], ["x"], max_seconds=9.0)

    def refused(*parts):
        with pytest.raises(UsageError) as error:
            merge(parts, run_id="0000000f")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert refused(first, third) == "attnbench merge: shards=2/3 are not among them; all 3 shards"
    assert refused(second) == "attnbench merge: shards=1/3, 3/3 are not among them; all 3 shards"
    assert "RUN=again.json is shard 1/3, as 00000001.json is" in refused(first, ("again.json", first[1]), second)
    assert "RUN=w.json is no shard; runs of" in refused(first, ("w.json", measured(run)))
    assert "another number of shards" in refused(first, shards(run, 2)[1])
    assert "another setting, max_seconds=9.0 and not " in refused(first, shards(other, 3)[1], third)
    longer = small_run(["x"], ["x"], ["x"], ["x"])
    assert "another plan" in refused(first, shards(longer, 3)[1], third)
    suite = "other.json", dataclasses.replace(second[1], suite="other")
    assert "other.json is no shard of the same run as 00000001.json: another suite" in refused(first, suite, third)

    def on(device, part):
        name, run = part
        return name, dataclasses.replace(run, settings=dataclasses.replace(run.settings, device=device))

    cards = [on(f"cuda:{number}", one) for number, one in enumerate((first, second, third))]
    assert merge(cards, run_id="0000000f").plan == run.plan, "which GPU is its own affair"
    assert "another setting, device=cuda and not cpu; the 3" in refused(first, on("cuda:0", second), third)
    files = second[0], dataclasses.replace(second[1], backend_files=("mine.py",))
    assert "another list of --backends files" in refused(first, files, third)

    def asked(words, part):
        name, run = part
        return name, dataclasses.replace(run, command=f"attnbench run small {words} --shard 1/3")

    beside = asked("--backends x,y", first), asked("--backends y,x", second)
    assert merge([*beside, asked("--backends y,x", third)], run_id="0000000f").plan == run.plan, "in any order"
    assert "another --backends;" in refused(*beside, asked("--backends x,z", third))
    assert "another --backends;" in refused(*beside, third)
    assert "another --skip;" in refused(first, asked("--skip y", second), third)


def test_shards_that_are_damaged_or_were_cut_otherwise_lose_and_double_nothing():
    run = small_run(["x", "y"], ["x", "y"], ["x"], ["x"])
    (one, first), (two, second) = shards(run, 2)

    def refused(*parts):
        with pytest.raises(UsageError) as error:
            merge(list(zip((one, two), parts, strict=True)), run_id="0000000f")
        assert "\n" not in str(error.value)
        return str(error.value)

    lost, kept = second.plan[0], second.plan[1:]
    without = tuple(record for record in second.records if record.group != lost.group)
    missing = dataclasses.replace(second, plan=kept, records=without)
    assert f"group={lost.group} is in none of the shards" in refused(first, missing)
    assert f"group={lost.group} in {two} is also in {one}" in refused(
        dataclasses.replace(first, plan=(*first.plan, lost)), second
    )
    strange = dataclasses.replace(lost, group="strange")
    assert f"group=strange in {two} is not of the plan" in refused(
        first, dataclasses.replace(second, plan=(strange, *kept), records=without)
    )
    record = second.records[0]
    for records in (
        (*second.records, record),
        (dataclasses.replace(record, group=first.plan[0].group), *second.records[1:]),
        (dataclasses.replace(record, group="zzz"), *second.records[1:]),
        (dataclasses.replace(record, backend="zzz"), *second.records[1:]),
        (dataclasses.replace(record, environment=99), *second.records[1:]),
        (dataclasses.replace(record, environment=-1), *second.records[1:]),
    ):
        assert f"RUN={two} is damaged" in refused(first, dataclasses.replace(second, records=records))
    for index, count in ((0, 2), (3, 2), (2, 10**8)):
        shard = dataclasses.replace(second.shard, index=index, count=count)
        assert f"RUN={two} is damaged" in refused(first, dataclasses.replace(second, shard=shard))


def test_a_command_with_a_quote_without_an_end_is_compared_by_its_words():
    (one, first), (two, second) = shards(small_run(["x"], ["x"]), 2)
    spoilt = [
        dataclasses.replace(run, command=f"attnbench run 'small --backends {name}")
        for run, name in ((first, "x"), (second, "y"))
    ]
    assert (
        len(
            merge(
                [(one, spoilt[0]), (two, dataclasses.replace(second, command=spoilt[0].command))], run_id="0000000f"
            ).records
        )
        == 2
    )
    with pytest.raises(UsageError, match="another --backends; "):
        merge([(one, spoilt[0]), (two, spoilt[1])], run_id="0000000f")


def test_a_cut_does_not_depend_on_which_backends_are_installed():
    cases = [["x"], ["x", "y", "z"], ["x", "y"], ["x"], ["x"]]
    homes = [
        [group.case_id for group in shard_of("x", small_run(*which), "1/2").plan] for which in (cases, [["x"]] * 5)
    ]
    assert homes[0] == homes[1]
