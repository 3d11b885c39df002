"""Figures of kernels compiled before: what a key depends on, when a job is compiled all the same, what is kept."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from . import aot, figures
from .aot import Compiled, Job

JOB = Job(
    "sum of parts",
    "attnbench.kernels.flash.merge:merge_parts",
    {"out_ptr": "*bf16:16", "rows": "i32"},
    {"BLOCK": 64},
    90,
)
MADE = {"registers": 40, "spills": 0, "sass": {"HGMMA": 2}}


@pytest.fixture(autouse=True)
def compiled_here(monkeypatch):
    """A kernel of ours may have been imported to be interpreted by another test, and then has no source hash."""
    monkeypatch.setattr(figures, "_source", lambda kernel: f"source of {kernel}" if "attnbench" in kernel else None)
    monkeypatch.delenv(figures.SEEN, raising=False)
    monkeypatch.delenv("ATTNBENCH_KERNEL_CODE", raising=False)


def holding(monkeypatch, held):
    monkeypatch.setattr(figures, "known", lambda: held)


def test_a_key_is_that_of_all_that_goes_into_a_compilation(monkeypatch):
    key = figures.key_of(JOB, None)
    assert key == figures.key_of(replace(JOB, label="another name"), None)
    others = [
        replace(JOB, arguments={**JOB.arguments, "rows": "i32:16"}),
        replace(JOB, constants={"BLOCK": 128}),
        replace(JOB, capability=80),
        replace(JOB, num_warps=8),
        replace(JOB, num_stages=2),
        replace(JOB, options={"maxnreg": 128}),
        replace(JOB, kernel="attnbench.kernels.flash.merge:another"),
    ]
    keys = {key, *(figures.key_of(job, None) for job in others)}
    for name, value in (("_version", "3.10"), ("_readers", "other files")):
        with monkeypatch.context() as patch:
            patch.setattr(figures, name, lambda *_, value=value: value)
            keys.add(figures.key_of(JOB, None))
    assert len(keys) == len(others) + 3
    assert figures.key_of(replace(JOB, kernel="made_up.module:kernel"), None) is None


def test_the_versions_differ():
    found = {figures._version(folder) for folder in aot.tritons().values()}
    assert len(found) == len(aot.tritons())


def test_of_the_known_some_are_compiled_all_the_same(monkeypatch):
    holding(monkeypatch, {"key": MADE})
    drawn = [figures.found("key") for _ in range(60 * figures.AGAIN)]
    assert 20 <= drawn.count(None) <= 120  # of 60 expected; beyond is one run in 10⁷
    assert all(one in (None, MADE) for one in drawn)
    assert figures.found("unknown") is None
    assert figures.found(None) is None
    monkeypatch.setenv("ATTNBENCH_KERNEL_CODE", "hashes.jsonl")
    assert {figures.found("key") is None for _ in range(5)} == {True}


def test_other_figures_than_the_compiler_s_are_an_error(monkeypatch):
    holding(monkeypatch, {"key": MADE})
    figures.note("key", MADE)
    figures.note("unknown", MADE | {"spills": 3})
    with pytest.raises(RuntimeError, match=r"figures\.json\.gz says other than the compiler"):
        figures.note("key", MADE | {"spills": 3})


def test_what_a_run_used_is_kept_and_nothing_else(monkeypatch, tmp_path):
    holding(monkeypatch, {"used": MADE, "stale": MADE})
    monkeypatch.setenv(figures.SEEN, str(tmp_path))
    monkeypatch.setattr(figures, "FILE", tmp_path / "figures.json.gz")
    figures.note("used", MADE)
    figures.note("used", MADE)
    figures.note("fresh", MADE | {"spills": 1})
    figures.note(None, MADE)
    assert figures.write(tmp_path) == 2
    written = figures.FILE.read_bytes()
    assert json.loads(gzip.decompress(written)) == {"used": MADE, "fresh": MADE | {"spills": 1}}
    figures.write(tmp_path)
    assert figures.FILE.read_bytes() == written  # no time of day in it


def test_a_job_that_is_known_starts_no_compiler(monkeypatch):
    full = dict.fromkeys(Compiled.__dataclass_fields__, 0) | {
        name: {} for name in ("handovers", "unset", "overwritten", "unread", "sass", "before_wait")
    }
    full["loops"] = []
    monkeypatch.setattr(aot, "EVERY", False)
    monkeypatch.setattr(figures, "AGAIN", 10**9)
    monkeypatch.setattr(aot, "_Compiler", lambda folder: pytest.fail("it was compiled"))
    monkeypatch.setattr(aot, "_compilers", {})
    held = {figures.key_of(JOB, None): full}
    holding(monkeypatch, held)
    assert aot.compile_with({"pinned": None}, [JOB]) == {"pinned": {JOB.label: Compiled(**full)}}
    # What registers.py found stays an error.
    held[figures.key_of(JOB, None)] = full | {"unset": {"R7": "line 3"}}
    with pytest.raises(RuntimeError, match="R7"):
        aot.compile_with({"pinned": None}, [JOB])
