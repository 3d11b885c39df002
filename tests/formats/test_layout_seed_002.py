"""seed-002: the seed's own regular expressions and columns on our files; broken files are refused."""

from __future__ import annotations

import dataclasses
import re

import pytest
from openpyxl import Workbook, load_workbook

from attnbench.cli import main
from attnbench.errors import RunFileError, UsageError
from attnbench.formats.layouts import load_layout, recognise
from attnbench.store.runfile import write
from made_up_run import make_case, make_record, make_run, make_time

SEED_002 = load_layout("seed-002")
# Copied from the seed's script, not from ours.
FILE = r"benchmark_bs(\d+)_nc(\d+)\.log"
LINE = r"KV Caches:\s*(\d+),\s*Candidate Embeddings:\s*(\d+),\s*Total time\(ms\):\s*([0-9.]+)"
COLUMNS = ["file", "batch_size", "num_candidate", "kv_caches", "candidate_embeddings", "total_time_ms"]
BATCHES, CANDIDATES, CACHED = (1, 2, 4, 8), (128, 256, 512, 1024), (0, 256, 4096)


def record(batch, candidates, cached, samples, backend="serving-paged", **changed):
    case = {
        "batch": batch,
        "num_candidates": candidates,
        "cached": cached,
        "new_tokens": 256,
        "cache": "gpu-hit",
        "model": "bench",
    } | changed
    name = "-".join(f"{value}" for value in case.values())
    made = make_record(make_case(), backend, tflops=1.0, time=make_time(samples))
    return dataclasses.replace(made, workload="hstu-serving", case=case, case_id=name, group=name)


def ms(batch, candidates, cached):
    return batch * candidates / 100 + cached / 7000


@pytest.fixture
def sweep():
    return make_run(
        [
            record(batch, candidates, cached, [ms(batch, candidates, cached)] * 3, backend)
            for batch in BATCHES
            for candidates in CANDIDATES
            for cached in reversed(CACHED)
            for backend in ("serving-paged", "serving-eager")
        ]
    )


def test_the_seeds_expressions_read_our_logs(sweep, tmp_path):
    written = SEED_002.write(sweep, tmp_path)
    logs = sorted((tmp_path / "logs").iterdir())
    assert len(logs) == 16
    assert len(written) == 16 + 9
    for path in logs:
        batch, candidates = map(int, re.fullmatch(FILE, path.name).groups())
        lines = path.read_text().splitlines()
        found = [re.search(LINE, line).groups() for line in lines]
        assert [(int(a), int(b)) for a, b, _ in found] == [(cached, candidates + 256) for cached in CACHED]
        for (_, _, text), cached in zip(found, CACHED, strict=True):
            assert float(text) == pytest.approx(ms(batch, candidates, cached), abs=1e-6)
        assert all(re.fullmatch(LINE, line) for line in lines)


def test_a_series_of_steps_is_no_step(tmp_path):
    written = SEED_002.write(make_run([record(1, 128, 0, [1.0]), record(1, 128, 0, [9.0], cache="pool")]), tmp_path)
    assert written[0] == tmp_path / "logs/benchmark_bs1_nc128.log"
    assert written[0].read_text().count("Total time") == 1
    for series in ("pool", "growth"):  # one that was interrupted before its steps were timed one by one
        with pytest.raises(UsageError, match="records=0 have a time of a step"):
            SEED_002.write(make_run([record(1, 128, 0, [9.0], cache=series)]), tmp_path)


def test_a_series_in_which_histories_grow_has_a_line_for_each_of_its_steps(tmp_path):
    """As the seed printed them: 64 steps of one batch and count of candidates."""
    steps = {f"cached {256 * number}": make_time([1.0 + number, 2.0 + number]) for number in range(64)}
    grown = dataclasses.replace(record(8, 1024, 0, [99.0], cache="growth", visits=64), phases=steps)
    SEED_002.write(make_run([grown]), tmp_path)
    lines = (tmp_path / "logs/benchmark_bs8_nc1024.log").read_text().splitlines()
    assert lines == [
        f"KV Caches: {256 * number}, Candidate Embeddings: 1280, Total time(ms): {1.5 + number:.6f}"
        for number in range(64)
    ]
    assert len(sheet(tmp_path / "benchmark_results_bs8.xlsx")[1]) == 65
    assert len(SEED_002.read(tmp_path).records) == 64


def test_very_short_and_very_long_times_have_no_exponent(tmp_path):
    SEED_002.write(make_run([record(1, 128, 0, [0.000004]), record(1, 128, 256, [123456789.5])]), tmp_path)
    assert (tmp_path / "logs/benchmark_bs1_nc128.log").read_text() == (
        "KV Caches: 0, Candidate Embeddings: 384, Total time(ms): 0.000004\n"
        "KV Caches: 256, Candidate Embeddings: 384, Total time(ms): 123456789.500000\n"
    )


def sheet(path):
    book = load_workbook(path)
    (page,) = book.worksheets
    return page.title, [list(row) for row in page.iter_rows(values_only=True)]


def test_nine_workbooks_with_the_seeds_sheets_columns_and_types(sweep, tmp_path):
    SEED_002.write(sweep, tmp_path)
    books = {path.name: sheet(path) for path in tmp_path.glob("*.xlsx")}
    assert set(books) == {
        "benchmark_results.xlsx",
        *(f"benchmark_results_bs{one}.xlsx" for one in BATCHES),
        *(f"benchmark_results_nc{one}.xlsx" for one in CANDIDATES),
    }
    for name, (title, (header, *rows)) in books.items():
        assert title == ("results" if name == "benchmark_results.xlsx" else "Sheet1")
        assert header == COLUMNS
        assert len(rows) == (48 if name == "benchmark_results.xlsx" else 12)
        for file, batch, candidates, cached, embeddings, time in rows:
            assert file == f"benchmark_bs{batch}_nc{candidates}.log"
            assert all(type(one) is int for one in (batch, candidates, cached, embeddings))
            assert embeddings == candidates + 256
            assert float(time) == pytest.approx(ms(batch, candidates, cached), abs=1e-6)
            assert f"_bs{batch}." in name or f"_nc{candidates}." in name or name == "benchmark_results.xlsx"


@pytest.mark.parametrize("what", ["", "logs", "benchmark_results.xlsx"])
def test_a_round_trip_loses_nothing(sweep, tmp_path, what):
    SEED_002.write(sweep, tmp_path / "a")
    path = tmp_path / "a" / what
    assert recognise(path) is SEED_002
    back = SEED_002.read(path)
    assert len(back.records) == 48
    SEED_002.write(back, tmp_path / "b")
    for log in (tmp_path / "a/logs").iterdir():
        assert (tmp_path / "b/logs" / log.name).read_text() == log.read_text()
    for book in (tmp_path / "a").glob("*.xlsx"):
        assert sheet(tmp_path / "b" / book.name) == sheet(book)
    one = next(
        one
        for one in back.records
        if one.case == {"batch": 8, "num_candidates": 1024, "cached": 4096, "new_tokens": 256}
    )
    assert (one.workload, one.time.timer, one.time.mean_ms) == (
        "hstu-serving",
        "imported",
        pytest.approx(ms(8, 1024, 4096), abs=1e-6),
    )


def test_lines_of_the_original_script_and_steps_that_come_twice(tmp_path):
    log = tmp_path / "benchmark_bs8_nc128.log"
    log.write_text(
        "loading …\nBatch_size: 8, KV Caches: 0, Candidate Embeddings: 384, Total time(ms): 12.5\n"
        "KV Caches:512,Candidate Embeddings:  384, Total time(ms):13\n"
        "KV Caches: 768, Candidate Embeddings: 384, Total time(ms): 1.5e+03\n"
        "KV Caches: 1024, Candidate Embeddings: 384, Total time(ms): 2E-2 each\n"
        "KV Caches: 0, Candidate Embeddings: 384, Total time(ms): 11.25\ndone\n"
    )
    back = SEED_002.read(log)
    assert [(one.case["cached"], one.time.mean_ms, one.replicate) for one in back.records] == [
        (0, 12.5, 0),
        (512, 13.0, 0),
        (768, 1500.0, 0),
        (1024, 0.02, 0),
        (0, 11.25, 1),
    ]
    assert len({one.group for one in back.records}) == 5


def test_the_end_to_end_time_is_taken_where_it_was_read(tmp_path):
    one = record(1, 128, 0, [1.0])
    wall = dataclasses.replace(make_time([3.0]), timer="wall")
    both = dataclasses.replace(one, timers={"cupti": one.time, "wall": wall})
    SEED_002.write(make_run([both]), tmp_path)
    assert "Total time(ms): 3.000000" in (tmp_path / "logs/benchmark_bs1_nc128.log").read_text()
    assert SEED_002.notes(make_run([both])) == ("seed-002: serving-paged is in the files",)
    assert SEED_002.notes(make_run([one]))[1].startswith("seed-002: the time is the GPU's alone")


def test_axes_that_the_columns_do_not_hold_are_folders(tmp_path):
    run = make_run(
        [
            record(1, 128, 0, [1.0]),
            record(1, 128, 0, [2.0], cache="host-hit"),
            record(1, 128, 0, [9.0], backend="serving-eager"),
        ]
    )
    SEED_002.write(run, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache-gpu_hit", "cache-host_hit"]
    assert SEED_002.notes(run)[0] == "seed-002: serving-paged is in the files, not serving-eager"
    assert "cache-host_hit/logs/benchmark_bs1_nc128.log:" in SEED_002.console(run)


def test_which_way_of_carrying_a_step_out_can_be_chosen(tmp_path, capsys):
    other = record(1, 128, 0, [9.0], backend="serving-paged[graph]")
    path = write(make_run([record(1, 128, 0, [1.0]), other]), tmp_path / "run.json")
    line = ["export", str(path), "--layout", "seed-002"]
    assert main([*line, "--backends", "serving-paged[graph]"]) == 0
    found = capsys.readouterr()
    assert "Total time(ms): 9.000000" in found.out
    assert "seed-002: serving-paged[graph] is in the files" in found.err
    assert main([*line, "--backends", "serving-paged[grahp]"]) == 2
    assert "--backends=serving-paged[grahp] is not known; one of serving-paged, serving-paged[graph]" in " ".join(
        capsys.readouterr().err.split()
    )


BROKEN = {
    "benchmark_bs1_nc128.log:1: total_time_ms='1.2.3' cannot be used; milliseconds above 0": (
        "benchmark_bs1_nc128.log",
        "KV Caches: 0, Candidate Embeddings: 384, Total time(ms): 1.2.3",
    ),
    "benchmark_bs1_nc128.log:2: candidate_embeddings=12 is under num_candidate; at least 128": (
        "benchmark_bs1_nc128.log",
        "\nKV Caches: 0, Candidate Embeddings: 12, Total time(ms): 1",
    ),
    "benchmark_bs0_nc128.log:1: batch_size=0 is no batch": (
        "benchmark_bs0_nc128.log",
        "KV Caches: 0, Candidate Embeddings: 384, Total time(ms): 1",
    ),
    "benchmark_bs1_nc128.log: lines=0 are of steps": ("benchmark_bs1_nc128.log", "nothing\n"),
    "kv_caches='99999999999999999999' cannot be used": (
        "benchmark_bs1_nc128.log",
        "KV Caches: 99999999999999999999, Candidate Embeddings: 384, Total time(ms): 1",
    ),
}


@pytest.mark.parametrize("said", BROKEN, ids=lambda said: said[:40])
def test_broken_logs_are_refused_by_line(tmp_path, said):
    name, text = BROKEN[said]
    (tmp_path / name).write_text(text)
    with pytest.raises(RunFileError) as refused:
        SEED_002.read(tmp_path / name)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_broken_workbooks_are_refused_by_row(tmp_path):
    path = tmp_path / "benchmark_results.xlsx"
    path.write_bytes(b"no workbook")
    with pytest.raises(RunFileError, match="cannot be read"):
        SEED_002.read(path)
    for rows, said in (
        ([["file", "batch"]], "is not seed-002; file,batch_size"),
        ([], "is not seed-002"),
        ([COLUMNS, ["x.log", 1, 128, "many", 384, 1.5]], r":2: kv_caches='many' cannot be used"),
        ([COLUMNS, ["x.log", 1, 128, 0, 384, None]], r":2: total_time_ms='None' cannot be used"),
    ):
        book = Workbook()
        for row in rows:
            book.active.append(row)
        book.save(path)
        with pytest.raises(RunFileError, match=said):
            SEED_002.read(path)


def test_other_runs_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="seed-002: workload=attention has no serving steps; a run of hstu-serving"):
        SEED_002.write(make_run(), tmp_path)
    with pytest.raises(UsageError, match="seed-002: records=0 have a time"):
        SEED_002.write(make_run([]), tmp_path)
    with pytest.raises(RunFileError, match="has nothing of seed-002"):
        SEED_002.read(tmp_path)
    with pytest.raises(RunFileError, match="nowhere is not there; logs"):
        SEED_002.read(tmp_path / "nowhere")
    assert not SEED_002.recognises(tmp_path)


def test_files_of_another_run_in_the_folder_are_named(sweep, tmp_path, capsys):
    """An import would take both for one run."""
    small = make_run([record(1, 128, 0, [1.0, 1.0])])
    for run in (sweep, small):
        saved = write(run, tmp_path / "run.json")
        assert main(["export", str(saved), "--layout", "seed-002", "--to", str(tmp_path / "out")]) == 0
        said = [line for line in capsys.readouterr().err.splitlines() if "still there" in line]
        assert bool(said) == (run is small)
    there = {one.strip() for one in said[0].partition("of another run: ")[2].split(",")}
    mine = {"benchmark_bs1_nc128.log", "benchmark_results.xlsx", "benchmark_results_bs1.xlsx"}
    mine |= {"benchmark_results_nc128.xlsx"}
    every = {str(path) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert there == {path for path in every if path.rpartition("/")[2] not in mine}
    assert len(there) == 25 - 4


def test_the_command_says_how_many_and_what_it_passed_over(sweep, tmp_path, capsys):
    saved = write(sweep, tmp_path / "run.json")
    assert main(["export", str(saved), "--layout", "seed-002", "--to", str(tmp_path / "out")]) == 0
    (tmp_path / "out/logs/notes.txt").write_text("mine")
    capsys.readouterr()
    assert main(["import", str(tmp_path / "out"), "--no-save"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("seed-002: 48 rows")
    assert "passed over: notes.txt" in said.err
