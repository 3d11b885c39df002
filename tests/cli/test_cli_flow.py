"""Successful and interrupted commands."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnbench import cli
from attnbench.cli.ending import Ended
from attnbench.cli.output import Output
from attnbench.cli.progress import Bar, Clock
from attnbench.record import INTERRUPTED, PlannedGroup, Run, Status
from attnbench.store.runfile import loads, read, write
from attnbench.sweep.run import Event
from waiting import until

SOURCE = Path(cli.__file__).parents[2]
QUICK = "run quick --device cpu --seqlen 7 --headdim 32 --no-causal"


def test_a_run_ends_with_the_table_and_the_name_of_its_file(attnbench, sweep, saved):
    answer = attnbench(QUICK)
    [path] = saved()
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == f"written: {path}"
    assert "sdpa-math" in answer.out
    assert answer.err == ""
    run = read(path)
    assert [record.backend for record in run.records] == ["eager", "sdpa", "sdpa-math", "sdpa-flash"]
    assert (run.settings.baseline, run.settings.device) == ("sdpa", "cpu")


@pytest.mark.parametrize("flag", ["json", "csv", "md"])
def test_a_pipe_holds_the_data_alone(attnbench, sweep, flag, saved):
    answer = attnbench(f"{QUICK} --{flag} -")
    assert answer.code == 0
    assert "sdpa-math" in answer.err
    assert f"written: {saved()[0]}" in answer.err
    if flag == "json":
        assert len(loads(answer.out).records) == 4
    elif flag == "csv":
        assert next(csv.DictReader(io.StringIO(answer.out)))["backend"] == "eager"
    else:
        assert "| sdpa-math" in answer.out
        assert "written" not in answer.out


def test_every_export_is_written_and_named(attnbench, sweep, saved):
    answer = attnbench(f"{QUICK} --csv out/rows.csv --xlsx rows.xlsx --no-save")
    assert answer.out.splitlines()[-1] == "written: out/rows.csv, rows.xlsx"
    assert Path("out/rows.csv").is_file()
    assert Path("rows.xlsx").read_bytes().startswith(b"PK")
    assert saved() == []


def test_quiet_prints_the_name_of_the_run_file_alone(attnbench, sweep, saved):
    answer = attnbench(f"{QUICK} --quiet")
    assert (answer.out, answer.err) == (f"{saved()[0]}\n", "")
    answer = attnbench(f"{QUICK} --quiet --no-save")
    assert (answer.out, answer.err) == ("", "")
    answer = attnbench(f"{QUICK} --quiet --json -")
    assert len(loads(answer.out).records) == 4


def test_out_names_the_folder(attnbench, sweep):
    attnbench(f"{QUICK} --out elsewhere")
    assert len(list(Path("elsewhere").glob("*-quick-*.json"))) == 1


def test_a_dry_run_measures_and_writes_nothing(attnbench, sweep, saved):
    answer = attnbench(f"{QUICK} --dry-run")
    assert answer.code == 0
    assert "b1-s7-h4-d32-fp32-fwd" in answer.out
    assert "1 group, 4 rows, baseline sdpa" in answer.out
    assert "eager, sdpa, sdpa-math, sdpa-flash\n  b1-s7-h4-d32-fp32-fwd\n" in answer.out
    assert "at most 3 s of sampling a group" in answer.out
    assert sweep.runs == []
    assert saved() == []
    assert not Path("results").exists()


def test_a_dry_run_says_who_cannot_run_here(attnbench):
    answer = attnbench(
        "compare --device cpu --dtype fp32 --seqlen 64 --backends eager,flash-triton,sdpa-cudnn --dry-run"
    )
    assert answer.code == 0
    [line] = [line for line in answer.out.splitlines() if line.startswith("skipped")]
    assert line.split("  ")[1:] == ["flash-triton, sdpa-cudnn", "device=cpu is not supported; cuda"]


def test_a_dry_run_says_how_to_install_what_is_missing_with_this_machines_number_of_jobs(attnbench, monkeypatch):
    monkeypatch.setattr("attnbench.machine.advice.max_jobs", lambda: 7)
    monkeypatch.setattr("attnbench.backends.dense.DenseBackend.devices", ("cpu", "cuda"))
    monkeypatch.setattr("attnbench.backends.flash_attn_2.FlashAttn2.modules", ("surely_not_there",))
    answer = attnbench("compare --device cpu --dtype bf16 --seqlen 64 --backends eager,flash-attn-2 --dry-run")
    [line] = [line for line in answer.out.splitlines() if line.startswith("skipped")]
    assert "module=surely_not_there is not installed; MAX_JOBS=7 pip install" in line


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("run --device cpu", "attnbench run quick --device cpu"),
        ("run minimal --device cpu --no-grad", "attnbench run minimal --mode fwd --device cpu"),
        (
            "run quick --device cpu --seqlen 1,7 --causal-both --no-save --quiet --json x.json",
            "attnbench run quick --seqlen 1,7 --causal-both --device cpu",
        ),
        (
            "run quick --device cpu --backends sdpa,eager --backends ./mine.py --skip eager --baseline sdpa",
            "attnbench run quick --backends sdpa,eager,mine.py --skip eager --baseline sdpa --device cpu",
        ),
        ("run ./own.toml --device cpu --max-seconds 3", "attnbench run own.toml --max-seconds 3 --device cpu"),
        ("compare --device cpu --causal", "attnbench compare --causal --device cpu"),
        ("check --device cpu --dtype fp32 --seed 7", "attnbench check quick --dtype fp32 --seed 7 --device cpu"),
    ],
)
def test_the_command_of_a_run_asks_for_the_same_again(attnbench, sweep, words, command):
    Path("own.toml").write_text(
        'name = "own"\ntitle = "t"\nworkload = "attention"\nbackends = ["sdpa"]\naxes = { seqlen = [7] }\n'
    )
    assert attnbench(words).code == 0
    assert attnbench(shlex.split(command)[1:]).code == 0
    first, again = sweep.runs
    assert first.command == again.command == command
    assert first.plan == again.plan
    assert first.settings == again.settings


def test_the_environment_is_kept_in_the_command(attnbench, sweep, monkeypatch):
    monkeypatch.setenv("SEQLEN", "63")
    monkeypatch.setenv("BATCH", "3")
    attnbench("compare --device cpu --batch 1 --quiet")
    [run] = sweep.runs
    assert run.command == "attnbench compare --batch 1 --seqlen 63 --device cpu"
    assert {group.case_id for group in run.plan} == {"b1-s63-h8-d64-fp32-fwd"}


def test_a_file_joins_its_backends(attnbench, sweep):
    attnbench(f"{QUICK} --backends ./mine.py --quiet")
    [run], [files] = sweep.runs, sweep.files
    assert run.plan[0].backends == ("eager", "sdpa", "sdpa-math", "sdpa-flash", "mine")
    assert (run.backend_files, files) == (("mine.py",), ("./mine.py",))


def test_compare_is_one_case_beside_flash_attention(attnbench, sweep):
    assert attnbench("compare --device cpu").code == 0
    [run] = sweep.runs
    assert len(run.plan) == 1
    assert run.settings.baseline == "sdpa-flash"
    assert (run.settings.warmup, run.settings.iterations) == (5, 30)


def test_a_pipe_gets_our_table_as_a_terminal_does(attnbench, sweep, monkeypatch):
    piped = attnbench("run minimal --device cpu --no-save")
    assert "median ms" in piped.out
    assert "Forward Pass Results" not in piped.out + piped.err
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    shown = attnbench("run minimal --device cpu --no-save")
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown.out) == piped.out


def test_an_older_layout_has_stdout_alone_where_it_is_asked_for(attnbench, sweep):
    answer = attnbench("run minimal --device cpu --layout seed-004")
    assert answer.out.startswith("Forward Pass Results:\n  Time (min):")
    assert answer.out.count("TFLOPs/s (avg):") == 1
    assert "written" not in answer.out
    assert "seed-004: Flash Attention is torch's own SDPA flash" in answer.err
    assert "written: results/" in answer.err
    assert "median ms" in answer.err
    assert "Implementation" in attnbench("compare --device cpu --layout seed-004").out


def test_a_layout_of_pictures_draws_them_beside_the_run_file(attnbench, sweep, monkeypatch):
    pytest.importorskip("vl_convert")
    words = "run sparse-length --seqlen 512 --device cpu --layout seed-003"
    answer = attnbench(words)
    assert "seq_len 512, causal false, sparsity 0 %" in answer.out
    [run] = Path("results").glob("*.json")
    assert f"written: results/{run.name}, results/{run.stem}\n" in answer.err
    drawn = {str(file.relative_to(run.with_suffix(""))) for file in run.with_suffix("").rglob("*.png")}
    pictures = {f"{metric}_causal_{mask}.png" for metric in ("time_ms", "tflops") for mask in ("false", "true")}
    assert {f"seq_len_plots{end}/{one}" for end in ("", "_30") for one in pictures} <= drawn
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    answer = attnbench(words + " --no-save")
    assert answer.code == 0
    assert "module=vl_convert is not installed; pip install vl-convert-python; the run can be drawn later" in answer.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--layout seed-009", "name=seed-009 is not known"),
        ("--layout seed-004 --csv -", "--layout=seed-004 wants stdout, as --csv does; one of the two"),
        ("--layout seed-004 --quiet", "--layout=seed-004 wants stdout, as --quiet does; one of the two"),
        ("--columns ,", "--columns=, names nothing"),
        ("--columns median,speed", "--columns=speed is not known"),
        ("--sort fastest", "--sort=fastest is not known"),
        ("--sort median:down", "--sort=median:down cannot be used; median or median:reverse"),
    ],
)
def test_a_view_that_cannot_be_is_refused_before_anything_is_measured(attnbench, sweep, flags, said):
    answer = attnbench(f"run quick --device cpu {flags}")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert said in answer.err
    assert sweep.runs == []


def test_columns_and_their_order_are_as_asked_for(attnbench, sweep):
    words = "run quick --device cpu --seqlen 1,7 --no-causal --no-save"
    table = attnbench(f"{words} --columns samples,median --sort backend:reverse").out.split("\n\n")[1].splitlines()
    assert table[1].split() == ["backend", "samples", "median", "ms"]
    assert [line.split()[0] for line in table[2:6]] == ["sdpa-math", "sdpa-flash", "sdpa", "eager"]
    answer = attnbench(f"{words} --columns samples,median --sort plan")
    matrix = answer.out.split("\n\n")[-1].splitlines()
    assert matrix[0].startswith("samples · all b1-h4-d64-fp32-fwd")
    assert matrix[2].split() == ["s1", "12", "12*", "12", "12"] or matrix[2].split()[0] == "s1"


def test_each_group_is_printed_when_it_is_done(attnbench, sweep, monkeypatch):
    import attnbench.report.table as table

    seen = []
    printed = table.Tables.more

    def more(self, run):
        printed(self, run)
        seen.append((len(run.records), sorted(self._cases)))

    monkeypatch.setattr(table.Tables, "more", more)
    answer = attnbench("run quick --device cpu --seqlen 1,7 --no-causal --no-save")
    assert [(count, len(cases)) for count, cases in seen] == [(4, 1), (8, 2)]
    assert [answer.out.count(f"b1-s{length}-h4-d64-fp32-fwd   timer") for length in (1, 7)] == [1, 1]


@pytest.mark.parametrize("flag", ["", " --quiet"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [("lost", "cuda:1 is lost: no such card"), ("waiting", "waiting for cuda:1, which is held by another run")],
)
def test_what_happens_to_a_gpu_is_said_on_stderr(attnbench, sweep, monkeypatch, kind, words, flag):
    def execute(run, *, on_event, executors, **more):
        on_event(Event(kind, text=words))
        return sweep.execute(run, on_event=on_event, executors=executors, **more)

    monkeypatch.setattr("attnbench.sweep.run.execute", execute)
    answer = attnbench(f"run quick --seqlen 16 --no-causal --backends eager --device cpu --no-save{flag}")
    assert (answer.code, answer.err) == (0, f"{words}\n")


def test_ctrl_c_shows_what_is_finished(attnbench, sweep):
    sweep.stop_after = 2
    answer = attnbench("run quick --device cpu --seqlen 1,7,9 --no-causal")
    assert answer.code == 130
    assert "b1-s7-h4-d64-fp32-fwd   timer" in answer.out
    assert "result " in answer.out
    [left] = [line for line in answer.out.splitlines() if "b1-s9" in line]
    assert left.startswith("result  1 of 3 groups was not measured, the run was stopped before: b1-s9-")
    assert "stopped; 2 of 3 groups are kept" in answer.err


def test_ctrl_c_while_files_are_written_takes_no_result_along(attnbench, sweep, monkeypatch):
    def stopped(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnbench.store.history.writing.keep", stopped)
    answer = attnbench("run quick --device cpu --seqlen 1,7 --no-causal")
    assert (answer.code, answer.err) == (130, "attnbench: interrupted\n")
    assert "b1-s7-h4-d64-fp32-fwd   timer" in answer.out
    assert "result " in answer.out


def test_a_resumed_run_shows_the_groups_it_had_too(attnbench, sweep):
    sweep.stop_after = 1
    attnbench("run quick --device cpu --seqlen 1,7 --no-causal --quiet")
    sweep.stop_after = None
    answer = attnbench("run --resume")
    assert answer.code == 0
    assert [answer.out.count(f"b1-s{length}-h4-d64-fp32-fwd   timer") for length in (1, 7)] == [1, 1]


def test_no_line_ends_in_blanks(attnbench, sweep, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = attnbench("run quick --device cpu --seqlen 1,7 --no-causal --backends sdpa,eager").out
    out += attnbench("list backends").out + attnbench("doctor").out
    assert not [line for line in out.splitlines() if line.endswith(" ")]


def test_a_terminal_shows_one_table(attnbench, sweep, monkeypatch):
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    sweep.statuses = {"flex": Status.FAILED}
    answer = attnbench("compare --device cpu --seqlen 4096 --headdim 128 --causal")
    assert "Implementation" not in answer.out
    assert re.search(r"failed\S* +flex +flex is made to be failed\n", answer.out)
    assert answer.out.count("sdpa-math") == 1


@pytest.mark.parametrize(
    ("verb", "statuses", "code"),
    [
        ("run", {}, 0),
        ("run", {"sdpa": Status.INCORRECT}, 1),
        ("run", {"sdpa": Status.CRASHED, "eager": Status.OOM}, 0),
        ("run", dict.fromkeys(("eager", "sdpa", "sdpa-math", "sdpa-flash"), Status.SKIPPED), 3),
        ("check", {}, 0),
        ("check", {"sdpa": Status.SKIPPED, "eager": Status.OOM}, 0),
        ("check", {"sdpa": Status.INCORRECT}, 1),
        ("check", {"sdpa": Status.FAILED}, 1),
        ("check", {"sdpa": Status.CRASHED}, 1),
        ("check", {"sdpa": Status.TIMEOUT}, 1),
        ("check", dict.fromkeys(("eager", "sdpa", "sdpa-math", "sdpa-flash"), Status.SKIPPED), 3),
    ],
)
def test_the_exit_code_says_how_it_ended(attnbench, sweep, verb, statuses, code, saved):
    sweep.statuses = statuses
    answer = attnbench(QUICK.replace("run", verb, 1))
    assert answer.code == code
    assert len(saved()) == 1
    if code == 3:
        assert answer.err == (
            "attnbench: suite=quick has no row that could run; eager skipped: eager is made to be skipped\n"
        )


def test_a_check_times_nothing_and_looks_at_gradients(attnbench, sweep, saved):
    assert attnbench("check quick --device cpu --seqlen 7 --headdim 32 --no-causal").code == 0
    [run] = sweep.runs
    assert run.settings.measure is False
    assert [group.case["mode"] for group in run.plan] == ["fwd", "fwd-bwd"]
    assert attnbench("check quick --device cpu --seqlen 7 --mode bwd --quiet").code == 0
    assert {group.case["mode"] for group in sweep.runs[1].plan} == {"bwd"}


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(attnbench, sweep, saved):
    sweep.stop_after = 1
    answer = attnbench("run quick --device cpu --seqlen 1,7 --headdim 32 --no-causal --backends ./mine.py --quiet")
    [path] = saved()
    assert answer.code == 130
    line = f"attnbench run --resume {path} --backends ./mine.py"
    assert answer.err == f"attnbench run: stopped; 1 of 2 groups are kept; to finish: {line}\n"
    assert len(read(path).records) == 5
    sweep.stop_after = None
    answer = attnbench(shlex.split(line)[1:])
    assert answer.code == 0
    assert saved() == [path]
    assert len(read(path).records) == 10
    assert sweep.runs[1].id == sweep.runs[0].id


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_another_signal_does_what_ctrl_c_does_and_has_its_own_code(attnbench, sweep, saved, number, code):
    sweep.stop_after, sweep.ending = 1, Ended(number)
    answer = attnbench("run quick --device cpu --seqlen 1,7 --headdim 32 --no-causal --quiet")
    assert answer.code == code
    [path] = saved()
    assert answer.err == f"attnbench run: stopped; 1 of 2 groups are kept; to finish: attnbench run --resume {path}\n"


def test_groups_that_were_cut_short_are_counted_apart(attnbench, sweep, saved):
    sweep.stop_after = 1
    assert attnbench("run quick --device cpu --seqlen 1,7 --headdim 32 --no-causal --quiet").code == 130
    [path] = saved()
    run = read(path)
    cut = [
        dataclasses.replace(one, time=one.time and dataclasses.replace(one.time, stopped_by=INTERRUPTED))
        for one in run.records
    ]
    write(dataclasses.replace(run, records=tuple(cut)), path)
    sweep.stop_after = 0
    answer = attnbench(f"run --resume {path} --quiet")
    assert answer.code == 130
    assert "stopped; 0 of 2 groups are kept, 1 more cut short; to finish: " in answer.err
    sweep.stop_after = None
    assert attnbench(f"run --resume {path}").code == 0
    assert len(read(path).records) == 2 * len(run.records)


def test_what_cannot_be_written_is_shown_and_in_the_other_files_that_were_asked_for(attnbench, sweep, tmp_path):
    sweep.unwritten = True
    target = tmp_path / "asked.json"
    answer = attnbench(f"{QUICK} --json {target}")
    assert answer.code == 2
    assert "sdpa-math" in answer.out
    assert "result  " in answer.out
    assert answer.err.splitlines()[-1] == (
        f"output: path=f.json cannot be written (No space left on device); another; what was measured is in {target}"
    )
    assert len(read(target).records) == 4


@pytest.mark.parametrize("flags", ["", " --no-save"])
def test_ctrl_c_leaves_the_finished_groups_in_the_files_that_were_asked_for(attnbench, sweep, saved, tmp_path, flags):
    sweep.stop_after = 1
    target = tmp_path / "asked.json"
    answer = attnbench(f"run quick --device cpu --seqlen 1,7 --headdim 32 --no-causal --quiet --json {target}{flags}")
    assert answer.code == 130
    assert {record.case["seqlen"] for record in read(target).records} == {1}
    if flags:
        kept = f"--no-save was given, so what is finished is in {target}\n"
        assert answer.err == f"attnbench run: stopped; {kept}"
        assert saved() == []
    else:
        assert f"1 of 2 groups are kept, also in {target}; to finish: " in answer.err


def test_a_resumed_run_needs_its_files_and_is_found_by_id(attnbench, sweep, saved):
    sweep.stop_after = 1
    attnbench("run quick --device cpu --seqlen 1,7 --headdim 32 --no-causal --backends ./mine.py --quiet")
    run_id = read(saved()[0]).id
    answer = attnbench(f"run --resume {run_id}")
    assert answer.code == 2
    assert answer.err == (
        f"attnbench run: --resume={run_id} was begun with the backends of mine.py; "
        "--backends mine.py; give the file again\n"
    )
    sweep.stop_after = None
    assert attnbench(f"run --resume {run_id} --backends ./mine.py --dry-run").out.count("b1-s7-") == 1
    assert attnbench(f"run --resume {run_id} --backends ./mine.py").code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "stopped before the first group was measured; nothing is kept"),
        ("--no-save", "stopped; --no-save was given, so nothing is kept"),
    ],
)
def test_ctrl_c_with_nothing_kept_says_so(attnbench, sweep, saved, flags, message):
    sweep.stop_after = 0
    answer = attnbench(f"{QUICK} {flags}")
    assert (answer.code, answer.err) == (130, f"attnbench run: {message}\n")
    assert saved() == []


def test_export_and_import(attnbench, sweep, saved):
    attnbench("run flash-sweep --device cpu --seqlen 512 --dtype bf16 --headdim 32 --backends eager,sdpa-flash --quiet")
    [path] = saved()
    run_id = read(path).id
    answer = attnbench(f"export {run_id} --csv rows.csv --by headdim")
    assert answer.out == "written: rows.headdim-32.csv\n"
    answer = attnbench(f"export {path} --layout seed-001")
    assert answer.out.splitlines()[0].startswith("Kernel Name,d_head,seq_len,Mean")
    assert "Reference is torch's own SDPA flash" in answer.err
    assert attnbench(f"export {path} --layout seed-001 --to sweep.csv").out == "written: sweep.csv\n"
    assert attnbench(f"export {path} --csv other.csv --layout seed-001").out == "written: other.csv\n"
    assert Path("other.csv").read_text() == Path("sweep.csv").read_text()
    answer = attnbench("import sweep.csv --json -")
    assert len(loads(answer.out).records) == 2
    assert "seed-001: 2 rows, written: results/" in answer.err
    assert len(saved()) == 2
    imported = max(saved(), key=lambda one: "seed-001" in one.name)
    answer = attnbench(f"run --resume {imported}")
    assert (answer.code, answer.err) == (
        2,
        f"attnbench run: --resume={imported} has no plan to finish; a run that run, compare or check began\n",
    )
    assert attnbench(f"run --resume {path} --dry-run").out == (
        "flash-sweep: its plan of 1 group is finished; nothing is left to measure\n"
    )


def test_lists_answer_in_json(attnbench, no_torch):
    rows = json.loads(attnbench("list backends --json -").out)
    eager = next(row for row in rows if row["name"] == "eager")
    assert eager["installed"] is True
    assert set(eager) == {"name", "workload", "installed", "version", "tested", "install", "devices", "title", "reason"}
    missing = next(row for row in rows if not row["installed"])
    assert missing["version"] is None
    assert not any("{" in f"{row['install']}{row['reason']}" for row in rows)
    assert missing["reason"]
    assert [row["name"] for row in json.loads(attnbench("list suites --json -").out)][:7] == [
        "attention-cp",
        "compare",
        "compare-attention-cp",
        "compare-hstu",
        "compare-hstu-serving",
        "compare-sparse",
        "compare-video",
    ]
    assert [row["name"] for row in json.loads(attnbench("list workloads --json -").out)] == [
        "attention",
        "attention-cp",
        "hstu",
        "hstu-serving",
        "sparse",
        "video",
    ]
    assert "wall" in [row["name"] for row in json.loads(attnbench("list timers --json -").out)]
    assert "seed-001" in [row["name"] for row in json.loads(attnbench("list layouts --json -").out)]
    assert [row["name"] for row in json.loads(attnbench("list backends --backends ./mine.py --json -").out)] == ["mine"]
    attnbench("list configs --json configs.json")
    assert isinstance(json.loads(Path("configs.json").read_text()), list)


def test_configurations_are_listed_for_the_shape_given(attnbench, no_torch):
    def shorts(words):
        return {row["name"].partition("[")[2] for row in json.loads(attnbench(f"list configs {words} --json -").out)}

    assert "m128n128w8s2-tma-ws]" in shorts("flash-triton --headdim 128") - shorts("flash-triton --headdim 256")
    assert "b64x128w8s2-atomic-tma-ws]" in shorts("flash-triton --headdim 128 --mode bwd --dtype bf16")
    assert "a64x64w8s2-ws]" in shorts("hstu-triton --attn-dim 256 --linear-dim 256 --mode fwd-bwd")


@pytest.mark.parametrize(
    ("words", "default"),
    [
        ("flash-triton --headdim 128 --seqlen 8192", "flash-triton[m128n128w8s2-tma-ws-deep-lazy-ticket-l16]"),
        ("flash-triton --headdim 128 --mode bwd", "flash-triton[b64x128w8s2-atomic-tma-ws]"),
        ("hstu-triton --attn-dim 128 --seqlen 512", "hstu-triton[f128x64w8s4-section_mib12.0-ws]"),
        ("hstu-triton --attn-dim 256 --mode bwd", "hstu-triton[a64x64w8s2-ws-carried]"),
        ("hstu-bsa-triton --attn-dim 64", "hstu-bsa-triton[ws]"),
        ("hstu-bsa-triton --attn-dim 64 --num-targets 4", "hstu-bsa-triton[attend-ws]"),
        ("hstu-bsa-triton --attn-dim 256", "hstu-bsa-triton[portable]"),
    ],
)
def test_the_default_is_marked_in_the_list_also_where_it_is_not_tuned(attnbench, no_torch, words, default):
    rows = json.loads(attnbench(f"list configs {words} --json -").out)
    assert [row["name"] for row in rows if row["default"]] == [default]
    assert len({row["name"] for row in rows}) == len(rows)
    marked = [line for line in attnbench(f"list configs {words}").out.splitlines() if "default" in line.split()]
    assert [line.split()[0] for line in marked] == ["name", default]


def test_configurations_with_fields_of_their_own_name_them(attnbench, no_torch):
    """As each kernel has its own, and a backend of two kernels has one within the other."""
    sparse = {line.split()[0]: line.split()[1:] for line in attnbench("list configs hstu-bsa-triton").out.splitlines()}
    assert sparse["hstu-bsa-triton[passes]"] == ["attend=none", "schedule=passes"]
    assert sparse["hstu-bsa-triton[s64x16w4]"][:3] == ["select=none", "select_rows=64", "select_blocks=16"]
    assert "forward.block_m=64 " in attnbench("list configs hstu-triton").out
    assert attnbench("list configs flash-triton --headdim 128").out.split()[:3] == ["name", "block_m", "block_n"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("configs flash-triton --headdim 64,128", "--headdim=64,128 is 2 cases; one value"),
        ("configs --causal-both", "--causal=both is 2 cases; one value"),
        ("configs hstu-triton --headdim 64", "axis=headdim is not known; one of alpha, attn_dim"),
        ("backends --headdim 64", "--headdim=64 does not narrow the list of backends; list configs"),
        ("configs flash-triton --headdim wide", "--headdim=wide cannot be used"),
    ],
)
def test_a_shape_that_lists_nothing_is_one_line(attnbench, words, said):
    answer = attnbench(f"list {words}")
    assert answer.code == 2
    assert f"attnbench list: {said}" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("what", ["backends", "configs", "suites", "workloads", "timers", "layouts"])
def test_every_list_is_a_table(attnbench, no_torch, what):
    answer = attnbench(f"list {what}")
    assert (answer.code, answer.err) == (0, "")
    assert 1 < len(answer.out.splitlines()) < 100


def test_configurations_are_counted_where_no_backend_is_named(attnbench, no_torch):
    rows = [line.split() for line in attnbench("list configs").out.splitlines()[1:]]
    counts = {name: int(count) for name, count, *_ in rows}
    assert len(json.loads(attnbench("list configs --json -").out)) == sum(counts.values())
    (words,) = [row for row in rows if row[0] == "flash-triton"]
    assert words[-4:] == ["attnbench", "list", "configs", "flash-triton"]
    assert len(attnbench("list configs flash-triton").out.splitlines()) == counts["flash-triton"] + 1


class Terminal(Output):
    """Its stderr is a terminal of a width."""

    def __init__(self, text, width):
        super().__init__()
        self.text, self.width = text, width

    def live_console(self):
        from rich.console import Console

        return Console(file=self.text, force_terminal=True, width=self.width)


def planned(cases=3, backends=("a", "b")):
    groups = tuple(
        PlannedGroup(group=f"b1-s{case}", workload="attention", case={}, case_id=f"b1-s{case}", backends=backends)
        for case in range(cases)
    )
    return Run(id="00ab", suite="quick", command="", started="2026-01-01T00:00:00Z", plan=groups)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_progress_bar_keeps_its_count_however_narrow(width):
    text = io.StringIO()
    with Bar(Terminal(text, width), "attnbench run", patience_s=0) as bar:
        bar.plan(planned(), {f"b1-s{case}": 100.0 for case in range(3)})
        bar.event(Event("activity", "check: poisoned outputs", "b1-s1-h4-d64-fp32-causal-fwd", "sdpa-math", 4, 32))
        bar.event(Event("group", group="b1-s0"))
        bar.event(Event("activity", "check: poisoned outputs", "b1-s1-h4-d64-fp32-causal-fwd", "sdpa-math", 4, 32))
        assert until(lambda: "1/3 groups" in text.getvalue())
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", text.getvalue())]
    shown = [line.rstrip() for line in lines if "1/3 groups" in line]
    assert shown
    assert re.search(r"━ +1/3 groups \d:\d\d:\d\d about", shown[0])
    assert max(map(len, shown)) <= width - len("^C")  # echoed on the next line it would keep the bar from being erased
    assert shown[0].endswith("sdpa-math  check: poisoned outputs" if width == 120 else "…")


def test_where_nobody_watches_a_line_comes_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr("attnbench.cli.progress.QUIET_S", 0.05)
    monkeypatch.setattr("attnbench.cli.progress.TICK_S", 0.01)
    said = []
    with Bar(Output(), "attnbench run", patience_s=0) as bar:
        assert until(lambda: said.append(capsys.readouterr().err) or "attnbench run: 0 s; planning" in said[-1])
        bar.plan(planned(), {"b1-s0": 5.0})
        bar.event(Event("activity", "sample", "b1-s0", "a"))
        assert until(
            lambda: (
                said.append(capsys.readouterr().err)
                or "left; b1-s0  a  sample" in said[-1]
                or "left; b1-s0 a sample" in said[-1]
            )
        )
    assert "\x1b" not in "".join(said)
    capsys.readouterr()
    with Bar(Output(quiet=True), "attnbench run", patience_s=0):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (125.0, "2 min 5 s"), (7e3, "116 min 40 s")]
)
def test_lines_of_one_minute_say_different_times(monkeypatch, capsys, seconds, words):
    monkeypatch.setattr("attnbench.cli.progress.QUIET_S", 0.05)
    monkeypatch.setattr("attnbench.cli.progress.TICK_S", 0.01)
    said = []
    with Bar(Output(), "attnbench run", patience_s=0) as bar:
        bar._begun -= seconds
        assert until(lambda: said.append(capsys.readouterr().err) or f"attnbench run: {words}; planning" in said[-1])


def test_the_time_left_learns_from_the_groups_that_are_done():
    clock = Clock(planned(), {"b1-s0": 10.0, "b1-s1": 10.0, "b1-s2": 20.0}, now=0.0)
    assert clock.left_s(4.0) == pytest.approx((36.0, 0.0))
    clock.finished("b1-s0", 30.0)
    assert clock.left_s(30.0) == pytest.approx((90.0, 0.0))
    assert clock.left_s(50.0) == pytest.approx((70.0, 0.0))
    assert clock.left_s(500.0) == pytest.approx((60.0, 440.0))  # the group at work is late; the next is not
    assert [clock.words(now) for now in (30.0, 50.0, 500.0)] == ["about 90 s left", "about 70 s left", "over 60 s left"]
    clock.finished("b1-s1", 40.0)
    assert clock.words(400.0) == "longer than estimated"
    clock.finished("b1-s2", 80.0)
    assert (clock.left_s(80.0), clock.done, clock.groups) == ((0.0, 0.0), 3, 3)


def test_the_list_of_backends_says_version_record_and_what_installs_it(attnbench, no_torch, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    lines = attnbench("list backends").out.splitlines()
    assert lines[0].split() == ["name", "workload", "installed", "tested", "on", "install"]
    own = next(line for line in lines if line.startswith("eager "))
    assert re.fullmatch(r"eager +attention +\d+\.\d+\S* +\S.*?", own.rstrip())
    missing = next(line for line in lines if re.match(r"\S+ +attention +no ", line))
    assert re.fullmatch(r"\S+ +attention +no +\S.* pip install [^{}]+", missing)


CLOSED = "{ " + shlex.quote(sys.executable) + " -m attnbench %s; }"


@pytest.mark.parametrize("words", ["list suites", "list suites --json -", "run --dry-run --device cpu", "--help"])
@pytest.mark.parametrize(("shut", "code"), [(">&-", 0), (">&- 2>&-", 0), (">/dev/full", 2)])
def test_a_stdout_that_takes_nothing_is_no_traceback(tmp_path, words, shut, code):
    """Data that was asked for on a closed stdout are refused: they would be lost without a word."""
    lost = words.endswith("-") and not code
    done = subprocess.run(
        f"{CLOSED % words} {shut}",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    said = "attnbench: stdout cannot be written (No space left on device); a place with room\n" if code else ""
    if lost:
        code = 2
        if "2>&-" not in shut:
            said = "attnbench list: --json=- is lost: stdout is closed; a path, or an open stdout\n"
    assert (done.returncode, done.stderr) == (code, said)


def test_a_suite_without_a_terminal_to_write_to_is_measured_all_the_same(tmp_path):
    """With stdin, stdout and stderr closed their numbers would go to the worker's pipes."""
    words = (
        "run quick --device cpu --seqlen 7 --headdim 16 --no-causal --iterations 3 --warmup 1 --backends eager "
        "--out kept"
    )
    done = subprocess.run(
        f"{CLOSED % words} <&- >&- 2>&-", shell=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    )
    assert done.returncode == 0
    [path] = (tmp_path / "kept").glob("*.json")
    assert [record.status for record in read(path).records] == [Status.PASSED]


def test_what_steers_a_terminal_is_not_passed_on(attnbench):
    answer = attnbench(["run", "\x1b[31mred\x07"])
    assert answer.err.startswith(r"attnbench: suite=\u001b[31mred\u0007 is not known")


def test_a_disk_that_fills_up_takes_neither_the_table_nor_the_other_files(attnbench, sweep, saved):
    answer = attnbench(f"{QUICK} --csv /dev/full --md rows.md")
    assert answer.code == 2
    assert "sdpa-math" in answer.out
    assert f"written: {saved()[0]}, rows.md" in answer.out
    assert answer.err == (
        "output: path=/dev/full cannot be written (No space left on device); a file in a folder you may write to\n"
    )


@pytest.mark.parametrize("words", ["list suites --json -", "list suites", "run --dry-run --device cpu", "--help"])
def test_a_reader_who_goes_away_is_no_error(tmp_path, words):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", *words.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        cwd=tmp_path,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_without_letters_is_no_error(tmp_path):
    environ = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "ascii"}
    for words in ("list layouts --json -", "list layouts", "run minimal --dry-run --device cpu"):
        done = subprocess.run(
            [sys.executable, "-m", "attnbench", *words.split()],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_whole_way_with_a_worker(attnbench, saved):
    words = (
        "run quick --device cpu --seqlen 7 --headdim 16 --no-causal --iterations 3 --warmup 1 "
        "--backends eager,sdpa --json -"
    )
    answer = attnbench(words)
    assert answer.code == 0, answer.err
    run = loads(answer.out)
    assert [(record.backend, record.status, record.time.num_samples) for record in run.records] == [
        ("eager", Status.PASSED, 3),
        ("sdpa", Status.PASSED, 3),
    ]
    assert all(record.errors["out"].ok for record in run.records)
    assert read(saved()[0]) == run
