"""``name[*]``: every configuration of a case, plus the suite's references."""

from __future__ import annotations

import types

import pytest

from attnbench.backends.base import Config
from attnbench.backends.registry import all_backends
from attnbench.errors import NothingToRun, UsageError
from attnbench.suites.load import Suite, load_suite
from attnbench.suites.plan import Request, build
from attnbench.workloads.base import load_workload

FILE = """
from attnbench.backends.eager import Eager
from attnbench.backends.base import Config

class Mine(Eager):
    name, title = "mine", "one configuration each 16 dims"

    def configs(self, case):
        if case.headdim == 13:
            raise ValueError("thirteen")
        return [Config(f"w{index}") for index in range(case.headdim // 16)]
"""


@pytest.fixture
def tunable(backends):
    """flex and flash-attn-2 (which is not installed) have a configuration each 32 dims of a head."""

    def configs(self, case):
        return [Config(f"b{16 * size}-w4", {"block": 16 * size}) for size in range(1, case.headdim // 32 + 1)]

    for name in ("flex", "flash-attn-2", "sdpa-cudnn"):
        backends[name].configs = types.MethodType(configs, backends[name])
    return backends


def planned(device="cpu", axes=(("headdim", (32, 64)),), **changes):
    suite = Suite(
        name="s",
        title="t",
        workload="attention",
        backends=("eager",),
        baseline="sdpa",
        references=changes.pop("references", ("sdpa",)),
        axes=dict(axes),
    )
    return build(Request(suite=suite, device=device, **changes), run_id="0badcafe", command="c", started="s")


@pytest.mark.parametrize(
    ("asked", "skip", "groups"),
    [
        (["flex[*]"], [], [("sdpa", "flex[b16-w4]"), ("sdpa", "flex[b16-w4]", "flex[b32-w4]")]),
        (["flex[b32*]"], [], [("sdpa",), ("sdpa", "flex[b32-w4]")]),
        (["flex[b?6*],eager"], [], [("sdpa", "flex[b16-w4]", "eager")] * 2),
        (["flex[*]"], ["flex[b32*]"], [("sdpa", "flex[b16-w4]")] * 2),
        (["flex[*]"], ["flex[b16-w4]", "sdpa"], [("flex[b32-w4]",)]),
        (["flex,flex[*]"], ["flex[*]"], [("sdpa", "flex")] * 2),
        (["fl*[*]"], [], [("sdpa", "flex[b16-w4]"), ("sdpa", "flex[b16-w4]", "flex[b32-w4]")]),
        (["all[*]"], [], [("sdpa", "flex[b16-w4]"), ("sdpa", "flex[b16-w4]", "flex[b32-w4]")]),
        (["sdpa-cudnn|flex[*]"], [], [("sdpa", "flex[b16-w4]"), ("sdpa", "flex[b16-w4]", "flex[b32-w4]")]),
        (["flex[b16-w4]"], [], [("flex[b16-w4]",)] * 2),
    ],
)
def test_each_case_has_its_own_configurations_beside_the_references(tunable, asked, skip, groups):
    run = planned(backends=tuple(asked), skip=tuple(skip))
    if "all[*]" in asked:
        # Backends without configurations add nothing where others have some.
        assert all(name.partition("[")[0] in ("sdpa", "flex") for group in run.plan for name in group.backends)
    assert [group.backends for group in run.plan] == groups


@pytest.mark.parametrize(
    ("device", "asked", "there"), [("cpu", "sdpa-cudnn[*]", "sdpa-cudnn"), ("cuda", "flash-attn-2[*]", "flash-attn-2")]
)
def test_who_cannot_run_here_has_one_row_that_says_so(tunable, device, asked, there):
    assert planned(device, backends=(asked,)).plan[0].backends == ("sdpa", there)


def test_the_baseline_is_one_that_every_group_has(tunable):
    assert planned(backends=("flex[*]",)).settings.baseline == "sdpa"
    assert planned(backends=("flex[*]",), references=()).settings.baseline == "flex[b16-w4]"
    assert planned(backends=("flex[*]",), baseline="eager").settings.baseline == "eager"
    assert planned(backends=("flex[*]",), baseline="flex[b16-w4]").settings.baseline == "flex[b16-w4]"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"backends": ("sdpa[*]",)}, UsageError, r"name=sdpa\[\*\] asks for configurations; sdpa has none"),
        (
            {"backends": ("sdpa*[*]",)},
            UsageError,
            r"name=sdpa\*\[\*\] asks for configurations; sdpa, sdpa-math, sdpa-flash have none",
        ),
        (
            {"backends": ("flex[m*]",)},
            UsageError,
            r"name=flex\[m\*\] means none of the 1 configurations there are; see `attnbench list configs flex`.*; did you "
            r"mean flex\[b16-w4\]\?",
        ),
        ({"backends": ("flx[*]",)}, UsageError, r"name=flx is not known; .*did you mean flex\?"),
        (
            {"baseline": "flex[*]"},
            UsageError,
            r"suite s: baseline=flex\[\*\] means several configurations; one backend",
        ),
        ({"backends": ("flex[*]",), "skip": ("all",)}, NothingToRun, "leaves nothing to run on cpu"),
        ({"backends": ("flex[*]",), "skip": ("sdpa", "flex[b*]")}, NothingToRun, r"--skip=.* leaves nothing"),
    ],
)
def test_what_means_no_configuration_is_refused_in_one_line(tunable, changes, error, message):
    with pytest.raises(error, match=message) as refused:
        planned(**changes)
    assert "\n" not in str(refused.value)


def test_our_own_kernels_have_theirs_with_the_references_of_the_sweep(monkeypatch):
    monkeypatch.setattr("attnbench.backends.flash_triton.FlashTriton.probe", lambda self: None)
    axes = {"seqlen": (512,), "dtype": ("bf16",), "headdim": (128,)}
    request = Request(suite=load_suite("flash-sweep", "cuda"), device="cuda", axes=axes, backends=("flash-triton[*]",))
    [group] = build(request, run_id="0badcafe", command="c", started="s").plan
    there = [
        config.short for config in all_backends()["flash-triton"].configs(load_workload("attention").case(group.case))
    ]
    references, ours = group.backends[:2], group.backends[2:]
    assert references[0] in ("flash-attn-2", "sdpa-flash")
    assert references[1] in ("flash-attn-3", "fa3-fwd")
    assert ours == tuple(f"flash-triton[{short}]" for short in there)
    assert len(ours) > 100


def test_a_file_of_backends_is_asked_for_each_case(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    run = planned(axes=(("headdim", (16, 48)), ("dtype", ("fp32",))), backends=("mine[*]",), files=(str(path),))
    assert [group.backends for group in run.plan] == [
        ("sdpa", "mine[w0]", "mine"),
        ("sdpa", "mine[w0]", "mine[w1]", "mine[w2]", "mine"),
    ]
    with pytest.raises(UsageError, match="name=mine cannot list its configurations: ValueError: thirteen"):
        planned(axes=(("headdim", (13,)),), backends=("mine[*]",), files=(str(path),))
