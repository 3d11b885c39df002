"""`attnbench diff` from the command line."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from pathlib import Path

import pytest

from attnbench.record import Status, Yardstick
from attnbench.store.runfile import write
from made_up_run import make_case, make_group, make_lost, make_run, make_time

CASES = [make_case(seqlen=length, seqlen_k=length) for length in (1024, 2048, 4096)]


def scaled(run, backend, factor, **changed):
    """The run with a backend that takes `factor` as long, by another source."""

    def one(record):
        if record.backend != backend or record.time is None:
            return record
        samples = [factor * sample for sample in record.time.samples_ms]
        return dataclasses.replace(record, time=make_time(samples), source_hash="two", **changed)

    return dataclasses.replace(run, records=tuple(map(one, run.records)))


@pytest.fixture
def runs(tmp_path):
    """Two files of three cases; the second is flex 8 % slower, and has lost one row."""
    records = [record for case in CASES for record in make_group(case, samples=40)]
    a = make_run([dataclasses.replace(one, source_hash="one") for one in records])
    b = scaled(dataclasses.replace(a, id="5e6f7a8b"), "flex", 1.08)
    lost = make_lost(CASES[0], "sdpa-efficient", Status.INCORRECT, "out: <b>max_abs</b>=0.31 | budget 0.0016")
    b = dataclasses.replace(
        b,
        records=tuple(lost if (one.case_id, one.backend) == (lost.case_id, lost.backend) else one for one in b.records),
    )
    (tmp_path / "results").mkdir()
    write(a, tmp_path / "a.json")
    write(b, tmp_path / "results/20261120T123456Z-compare-5e6f7a8b.json")
    write(a, tmp_path / "results/20261120T123456Z-compare-3f9a01bc.json")
    return a, b


def test_the_table(attnbench, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    answer = attnbench("diff a.json 5e6f7a8b")
    assert (answer.code, answer.err) == (1, "attnbench diff: 3 slower, 1 lost; exit 1\n")
    lines = answer.out.splitlines()
    assert lines[0] == "3f9a01bc → 5e6f7a8b"
    assert lines[1].startswith("NVIDIA H200 · torch 2.11.0+cu130 · triton 3.6.0")
    assert re.split(r"\s{2,}", lines[3].strip()) == [
        "case",
        "backend",
        "A µs",
        "B µs",
        "change %",
        "±",
        "seen from %",
        "cycles %",
        "processes",
        "against",
    ]
    flex = [line.split() for line in lines if "flex" in line]
    assert [line[line.index("flex") + 3] for line in flex] == ["+8.0"] * 3
    assert sum("slower" in line for line in flex) == 3
    assert any(
        line.startswith("lost  b1-s1024-h16-d128-bf16-fwd sdpa-efficient: passed in A, incorrect in B (out:")
        for line in lines
    )
    assert lines[-1] == "3 slower, 11 same, 1 lost"
    assert "note  all rows measured by only one process on a side" in answer.out


@pytest.mark.parametrize(
    ("limit", "code", "said"),
    [
        ("3", 1, "attnbench diff: 3 slower by more than 3 %, 1 lost; exit 1\n"),
        ("20%", 1, "attnbench diff: 1 lost; exit 1\n"),
    ],
)
def test_fail_over_is_an_exit_code(attnbench, runs, limit, code, said):
    answer = attnbench(["diff", "a.json", "5e6f7a8b", "--fail-over", limit])
    assert (answer.code, answer.err) == (code, said)


def slower_throughout(run, factor, yardsticks):
    """The run with all rows `factor` as long, of the same source, beside yardsticks."""
    lots = random.Random(len(run.id) + round(1000 * factor))

    def one(record):
        beside = {
            name: Yardstick(
                flops=1,
                bytes=1,
                rounds=tuple(range(40)),
                samples_ms=tuple(level * factor ** (yardsticks or 0) * lots.gauss(1.0, 0.003) for _ in range(40)),
            )
            for name, level in (("matmul", 0.03), ("copy", 0.05))
        }
        samples = [factor * sample * lots.gauss(1.0, 0.003) for sample in record.time.samples_ms]
        return dataclasses.replace(record, time=make_time(samples), yardsticks=beside if yardsticks is not None else {})

    return dataclasses.replace(
        run, id=f"{round(1e6 * factor) + (yardsticks or 0):08x}", records=tuple(map(one, run.records))
    )


@pytest.mark.parametrize(
    ("factor", "yardsticks", "flags", "code", "first"),
    [
        (1.6, None, "", 1, r"all rows: \+60\.\d %; without yardsticks on both sides nothing tells machine from code"),
        (1.6, None, "--machine-may-move", 0, r"all rows: \+60\.\d %; without"),
        (1.6, None, "--fail-over 80", 0, r"all rows: \+60\.\d %; without"),
        (
            1.04,
            1,
            "",
            1,
            r"all rows: \+[34]\.\d % \(yardsticks matmul \+[34]\.\d %, copy \+[34]\.\d %\): the machine; ",
        ),
        (1.04, 1, "--fail-over 3", 1, "all rows"),
        (1.04, 1, "--fail-over 5", 0, "all rows"),
        (1.04, 1, "--machine-may-move", 0, "all rows"),
        (0.96, 1, "", 0, r"all rows: -[34]\.\d % \(yardsticks"),
        (
            1.04,
            0,
            "",
            1,
            r"all rows: \+[34]\.\d % \(\+\d\.\d to \+\d\.\d\) against the yardsticks \(matmul [+-]0\.\d %, ",
        ),
        (1.04, 0, "--machine-may-move --fail-over 2", 1, "all rows"),
        (1.04, 0, "--exit-zero", 0, "all rows"),
    ],
)
def test_a_run_slower_throughout_is_the_first_line_and_an_exit_code(
    attnbench, tmp_path, monkeypatch, factor, yardsticks, flags, code, first
):
    monkeypatch.setenv("COLUMNS", "200")
    records = [record for length in range(1, 13) for record in make_group(make_case(seqlen=64 * length), samples=40)]
    run = make_run([dataclasses.replace(one, source_hash="one") for one in records])
    write(slower_throughout(run, 1.0, yardsticks), "a.json")
    write(slower_throughout(run, factor, yardsticks), "b.json")
    answer = attnbench(f"diff a.json b.json --json c.json --md d.md {flags}")
    assert answer.code == code, answer.err
    assert re.match(first, answer.out)
    assert Path("d.md").read_text("utf-8").startswith("**all rows: ")
    against = {None: "4 unchanged", 1: "4 unchanged, yardsticks", 0: "yardsticks"}[yardsticks]
    assert all(line.rstrip().endswith(f"  {against}") for line in answer.out.splitlines() if " sdpa-flash " in line)
    shift = json.loads(Path("c.json").read_text("utf-8"))["shift"]
    assert shift["cause"] == ("unknown" if yardsticks is None else "machine" if yardsticks else "code")
    assert shift["change"] == pytest.approx(factor - 1, abs=0.01)


@pytest.mark.parametrize(("current", "code", "verdict"), [(2.9, 1, "slower"), (2.1, 0, "faster"), (2.47, 3, "unclear")])
def test_files_of_a_seed_are_judged_by_what_they_have(attnbench, tmp_path, current, code, verdict):
    block = (
        "Forward Pass Results:\n  Time (min):      {:.3f} ms\n  Time (avg):      {:.3f} ms\n"
        "  TFLOPs/s (peak): 156.32 TFLOPs/s\n  TFLOPs/s (avg):  149.87 TFLOPs/s\n"
    )
    for name, mean in (("baseline.txt", 2.456), ("current.txt", current)):
        Path(name).write_text(block.format(mean - 0.1, mean), "utf-8")
    answer = attnbench("diff baseline.txt current.txt --json c.json")
    assert answer.code == code, answer.err
    (row,) = json.loads(Path("c.json").read_text("utf-8"))["rows"]
    assert (row["verdict"], row["a_ms"], row["b_ms"]) == (verdict, pytest.approx(2.456), pytest.approx(current))
    assert "based on means from another program's file, without samples" in answer.out.replace("\n", " ")
    if code == 3:
        assert answer.err == (
            "attnbench diff: nothing could be judged: every row is unclear; more samples (--max-seconds) or "
            "--replicates 3 may tell; exit 3\n"
        )
    for name in ("baseline", "current"):
        assert attnbench(f"import {name}.txt --out results").code == 0
    paths = sorted(map(str, Path("results").glob("*.json")))
    assert attnbench(["diff", *paths, "--exit-zero"]).code == 0
    answer = attnbench("diff baseline.txt ./baseline.txt")
    assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_what_got_better_does_not_fail(attnbench, runs):
    assert attnbench("diff 5e6f7a8b a.json --fail-over 0").code == 0


def test_markdown_for_a_pull_request(attnbench, runs):
    answer = attnbench("diff a.json 5e6f7a8b --md -")
    assert "change %" in answer.err
    lines = answer.out.splitlines()
    assert lines[:3] == ["### attnbench diff 3f9a01bc → 5e6f7a8b", "", "**3 slower, 11 same, 1 lost**"]
    assert len([line for line in lines if line.startswith("| b1-") and "| slower |" in line]) == 3
    assert r"\<b\>max\_abs\</b\>=0.31 \| budget" in answer.out
    folded = answer.out.split("<details><summary>11 the same</summary>\n\n")[1]
    assert len([line for line in folded.splitlines() if line.startswith("| b1-")]) == 11
    assert "</details>" in folded
    attnbench("diff a.json 5e6f7a8b --md here/diff.md")
    assert Path("here/diff.md").read_text("utf-8") == answer.out


def test_json_has_everything(attnbench, runs):
    data = json.loads(attnbench("diff a.json 5e6f7a8b --json -").out)
    assert (data["a"], data["b"]) == (["3f9a01bc"], ["5e6f7a8b"])
    (flex, *_) = [row for row in data["rows"] if row["backend"] == "flex"]
    assert flex["verdict"] == "slower"
    assert flex["low"] < flex["change"] < flex["high"]
    assert flex["change"] == pytest.approx(0.08, abs=0.002)
    assert flex["references"] == ["sdpa-flash", "sdpa-cudnn", "flash-attn-3"]
    assert [(row["b"], row["regression"]) for row in data["turned"]] == [("incorrect", True)]


def test_several_files_a_side_and_a_comma_in_a_name(attnbench, runs):
    Path("a.json").rename("a,1.json")
    write(dataclasses.replace(runs[1], id="00000001"), "again.json")
    answer = attnbench("diff a,1.json 5e6f7a8b,again.json --json -")
    assert {tuple(row["processes"]) for row in json.loads(answer.out)["rows"]} == {(1, 2)}


def test_what_judged_nothing_is_shown_beside_its_document_and_the_reason_comes_last(attnbench, runs):
    a, _ = runs
    write(
        dataclasses.replace(a, id="00000001", records=tuple(dataclasses.replace(one, time=None) for one in a.records)),
        "c.json",
    )
    answer = attnbench("diff a.json c.json --md -")
    assert answer.code == 3
    assert "without times" in answer.out
    *shown, reason = answer.err.splitlines()
    assert any("without times" in line for line in shown)
    assert reason == "attnbench diff: nothing could be judged: no row has a time in both; exit 3"


def test_rows_without_times_are_counted_and_are_no_gate(attnbench, runs):
    a, _ = runs
    for name, number in (("c.json", "00000001"), ("d.json", "00000002")):
        write(
            dataclasses.replace(a, id=number, records=tuple(dataclasses.replace(one, time=None) for one in a.records)),
            name,
        )
    answer = attnbench("diff c.json d.json --fail-over 3")
    assert answer.out.splitlines()[-1] == f"{len(a.records)} without times"
    assert answer.code == 3
    assert answer.err == "attnbench diff: nothing could be judged: no row has a time in both; exit 3\n"
    assert attnbench("diff c.json d.json --exit-zero").code == 0
    assert attnbench("diff c.json a.json").out.splitlines()[-1] == f"{len(a.records)} without times"
    assert len(json.loads(attnbench("diff c.json d.json --json -").out)["untimed"]) == len(a.records)


def test_a_narrow_page_still_says_what_could_be_seen(attnbench, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    answer = attnbench("diff a.json 5e6f7a8b")
    seen = [100 * row["smallest"] for row in json.loads(attnbench("diff a.json 5e6f7a8b --json -").out)["rows"]]
    assert f"seen from  {min(seen):.1f} to {max(seen):.1f} %" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 60


def test_a_run_whose_file_is_gone_is_read_from_the_history(attnbench, runs):
    assert attnbench("history --add results").code == 0
    before = {verb: attnbench(verb).out for verb in ("diff 3f9a01bc 5e6f7a8b --json -", "export 5e6f7a8b --csv -")}
    Path("results/20261120T123456Z-compare-5e6f7a8b.json").unlink()
    assert {verb: attnbench(verb).out for verb in before} == before
    answer = attnbench("report 5e6f7a8b")
    assert answer.out == "written: results/20261120T123456Z-compare-5e6f7a8b.html\n"
    answer = attnbench("run --resume 5e6f7a8b")
    assert answer.err == (
        "attnbench run: RUN=5e6f7a8b is in the history alone; a run file; "
        "attnbench history --restore 5e6f7a8b writes it\n"
    )
    Path("results/history.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    answer = attnbench("export 5e6f7a8b --csv -")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "the history could not be read: history: db=results/history.sqlite is not a database" in answer.err


def test_long_tables_leave_out_what_is_the_same(attnbench, tmp_path):
    records = [record for length in range(1, 21) for record in make_group(make_case(seqlen=64 * length), samples=20)]
    run = make_run([dataclasses.replace(one, source_hash="one") for one in records])
    write(run, "a.json")
    write(dataclasses.replace(scaled(run, "flex", 1.08), id="00000001"), "b.json")
    short, long = (attnbench(f"diff a.json b.json {flag}".split()).out for flag in ("", "--all"))
    assert short.splitlines()[-1] == "20 slower, 80 same; --all lists the rest"
    assert len(long.splitlines()) - len(short.splitlines()) == 80


def test_a_remark_that_many_rows_share_is_said_once(attnbench, tmp_path):
    few = [
        dataclasses.replace(one, time=make_time(list(one.time.samples_ms[:2])))
        for one in make_group(make_case(), {"sdpa": 500.0, "flex": 400.0, "eager": 100.0})
    ]
    write(make_run(few), "a.json")
    write(make_run(few, id="00000001"), "b.json")
    out = attnbench("diff a.json b.json").out
    [said] = [line for line in out.splitlines() if "fewer than three samples" in line]
    assert said.startswith("note  b1-s16384-h16-d128-bf16-fwd sdpa, and 2 more rows: one process per side and fewer")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("a.json nowhere", "attnbench diff: RUN=nowhere is not there; a run file, or the id of one in results"),
        ("a.json", "attnbench diff: B is missing, as in `attnbench diff previous latest`; see `attnbench diff --help`"),
        (
            "a.json a.json --fail-over much",
            "attnbench diff: --fail-over=much cannot be used; a number of per cent, 0 or more",
        ),
        ("a.json a.json --same-within -1", "attnbench diff: --same-within=-1 cannot be used"),
        ("a.json a.json --fail-over nan", "attnbench diff: --fail-over=nan cannot be used"),
        (
            "a.json a.json --across clock",
            "attnbench diff: --across=clock is not known; one of card, gpu, input, l2, regime",
        ),
        ("a.json a.json --reference ,", "attnbench diff: --reference=, names nothing"),
        ("a.json 5e6f7a8b --reference flx", "attnbench diff: --reference=flx is not known; one of "),
        ("a.json a.json --md - --json -", "attnbench diff: --json=- wants stdout, as --md does; one of them"),
        ("a.json a.json --md results", "output: path=results cannot be written (Is a directory)"),
        ("a.json a.json", "attnbench diff: RUN=a.json is run 3f9a01bc, as a.json is; each run once"),
        (
            "a.json,3f9a01bc 5e6f7a8b",
            "attnbench diff: RUN=results/20261120T123456Z-compare-3f9a01bc.json is run 3f9a01bc",
        ),
        ("a.json cut.json", "cut.json: line="),
        ("a.json other.json", "attnbench diff: RUN=3f9a01bc and 00000001 have no case and backend in common"),
        ("a.json warm.json", "attnbench diff: l2=cold, warm differ between A and B"),
    ],
)
def test_mistakes_are_answered_in_one_line(attnbench, runs, words, said):
    a, _ = runs
    text = Path("a.json").read_text("utf-8")
    Path("cut.json").write_text(text[: len(text) // 2])
    write(make_run([dataclasses.replace(one, workload="hstu") for one in a.records], id="00000001"), "other.json")
    write(
        dataclasses.replace(
            a,
            id="00000002",
            records=tuple(dataclasses.replace(one, time=dataclasses.replace(one.time, l2="warm")) for one in a.records),
        ),
        "warm.json",
    )
    answer = attnbench(["diff", *words.split()])
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(said)
    assert answer.err.count("\n") == 1


def test_it_runs_without_torch(attnbench, runs, no_torch):
    answer = attnbench("diff a.json 5e6f7a8b --exit-zero")
    assert (answer.code, answer.err) == (0, "")


def test_hostile_names_stay_text(attnbench, runs):
    a, _ = runs
    evil = make_run([dataclasses.replace(one, backend="<script>|`x`", case_id="\x1b[31mred") for one in a.records[:1]])
    write(evil, "evil.json")
    write(dataclasses.replace(evil, id="00000001"), "again.json")
    answer = attnbench("diff evil.json again.json --md evil.md")
    assert "\x1b" not in answer.out
    assert r"\<script\>\|\`x\`" in Path("evil.md").read_text("utf-8")
