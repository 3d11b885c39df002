import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.errors import RunFileError, UsageError
from attnbench.record import Error, Status, Yardstick
from attnbench.store import runfile
from attnbench.store.files import check_writable, write_bytes
from made_up_run import make_case, make_group, make_lost, make_record, make_run, make_time
from waiting import calls_of

YARDSTICK = {"flops": 0, "bytes": 64, "samples_ms": [0.1, 0.2], "rounds": [0, 1]}


def edited(**changes):
    """The text of a run file with fields of its first record's time, or of the top, replaced."""
    data = json.loads(runfile.dumps(make_run()))
    for path, value in changes.items():
        place, *names = [data, *path.split("__")]
        for name in names[:-1]:
            place = place[int(name) if name.isdigit() else name]
        place[names[-1]] = value
    return json.dumps(data)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "run.json"
    runfile.write(make_run(), path)
    run = runfile.read(path)
    assert runfile.loads(runfile.dumps(run)) == run
    first, read = make_run().records[0], run.records[0]
    assert dataclasses.replace(read, time=None, rate=None) == dataclasses.replace(first, time=None, rate=None)
    assert read.time.samples_ms == first.time.samples_ms
    assert read.rate.tflops == pytest.approx(first.rate.tflops)
    assert run.plan == make_run().plan
    assert run.environments == make_run().environments
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_one_record_a_line():
    lines = runfile.dumps(make_run()).splitlines()
    assert lines[0] == '{"schema": 1,'
    assert sum(line.startswith('{"workload": "attention"') for line in lines) == 8


def test_statistics_are_those_of_the_samples():
    run = runfile.loads(edited(records__0__time__median_ms=99.0, records__0__time__num_samples=3))
    stored = make_run().records[0].time.samples_ms
    assert run.records[0].time.median_ms == pytest.approx(statistics.median(stored))
    assert run.records[0].time.mean_ms == pytest.approx(statistics.fmean(stored))
    assert run.records[0].time.num_samples == 60


def test_rates_follow_the_derived_time():
    right = runfile.loads(runfile.dumps(make_run())).records[0]
    run = runfile.loads(edited(records__0__rate__tflops=1.0, records__0__rate__gbps=1.0))
    assert run.records[0].rate.tflops == pytest.approx(right.work.flops / right.time.median_ms / 1e9)
    assert run.records[0].rate.gbps == pytest.approx(right.work.bytes / right.time.median_ms / 1e6)
    assert run.records[0].rate.percent_of_peak == pytest.approx(right.rate.percent_of_peak)


def test_speedups_are_medians_of_ratios_within_rounds():
    case = make_case()
    # Rounds drift by a factor of 10: only pairs of one round show that b takes half as long.
    drift = [1.0, 10.0, 2.0, 5.0, 7.0, 3.0, 4.0]
    base = make_record(case, "a", tflops=100.0, time=make_time(drift))
    half = make_record(
        case, "b", tflops=100.0, baseline=base, time=make_time([x / 2 for x in drift[1:]], rounds=(1, 2, 3, 4, 5, 6))
    )
    half = dataclasses.replace(half, speedup=dataclasses.replace(half.speedup, ratio=1.0))
    run = runfile.loads(runfile.dumps(make_run([base, half])))
    assert run.records[1].speedup.ratio == pytest.approx(2.0)
    assert run.records[1].speedup.baseline == "a"


def test_a_record_of_another_replicate_is_no_baseline():
    case = make_case()
    base = make_record(case, "a", tflops=100.0, time=make_time([1.0] * 7), replicate=1)
    own = make_record(case, "b", tflops=100.0, baseline=base, time=make_time([0.5] * 7))
    stored = own.speedup.ratio
    assert runfile.loads(runfile.dumps(make_run([base, own]))).records[1].speedup.ratio == stored


def test_samples_are_stored_to_a_tenth_of_a_nanosecond():
    record = make_record(make_case(), "a", tflops=100.0, time=make_time([0.00851234567, 1.0, 2.0]))
    assert '"samples_ms": [0.0085123, 1.0, 2.0]' in runfile.dumps(make_run([record]))


def test_distances_that_are_not_numbers_are_null():
    error = Error(
        max_abs=float("nan"), rel_l1=float("inf"), rmse=float("nan"), cosine=float("nan"), budget=0.1, ok=False
    )
    lost = dataclasses.replace(make_lost(make_case(), "a", Status.INCORRECT, "out: NaN"), errors={"out": error})
    read = runfile.loads(runfile.dumps(make_run([lost]))).records[0].errors["out"]
    assert (read.max_abs, read.rel_l1, read.budget, read.ok) == (None, None, 0.1, False)


def test_yardsticks_are_kept_to_the_same_digits_and_may_be_absent():
    record = make_record(make_case(), "a", tflops=100.0, time=make_time([1.0, 2.0]))
    beside = Yardstick(flops=7, bytes=9, samples_ms=(0.03012345678,), rounds=(1,), sm_mhz=(1980.004,))
    text = runfile.dumps(make_run([dataclasses.replace(record, yardsticks={"matmul": beside})]))
    kept = runfile.loads(text).records[0].yardsticks
    assert kept == {"matmul": dataclasses.replace(beside, samples_ms=(0.0301235,), sm_mhz=(1980.0,))}
    old = json.loads(text)
    del old["records"][0]["yardsticks"]
    assert runfile.loads(json.dumps(old)).records[0].yardsticks == {}, "files from before they were there"


def test_an_empty_run_is_a_run():
    assert runfile.loads(runfile.dumps(make_run([]))).records == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, r"schema=2 is newer than this attnbench reads; at most 1; upgrade attnbench"),
        ({"schema": "1"}, r"schema='1' is not a version; 1 to 1"),
        ({"recrods": []}, r"recrods: unknown field; one of schema, run, records"),
        ({"run": []}, r"run: missing field or not an object"),
        ({"records": {}}, r"records: missing field or not a list"),
        ({"run__id": 7}, r"id: 7 is not a str"),
        ({"run__settings__rel_ci": "1%"}, r"settings\.rel_ci: '1%' is not a float"),
        ({"run__settings__rel_cl": 0.1}, r"settings\.rel_cl: unknown field; one of device, timer"),
        ({"records__2__status": "fine"}, r"records\[2\]\.status: 'fine' is not known; one of passed, incorrect"),
        ({"records__1__time__samples_ms": [1.0, "2"]}, r"records\[1\]\.time\.samples_ms\[1\]: '2' is not a float"),
        ({"records__1__time__samples_ms": [1.0, -2.0, *[1.0] * 58]}, r"samples_ms\[1\]=-2.0 is not a time; 0 to 1e"),
        ({"records__1__time__host_ms": 1e90}, r"records\[1\]\.time\.host_ms=1e\+90 is not a time; 0 to 1e\+12 milli"),
        (
            {"records__1__yardsticks": {"copy": YARDSTICK | {"samples_ms": [0.1, -2.0]}}},
            r"records\[1\]\.yardsticks\.copy\.samples_ms\[1\]=-2.0 is not a time; 0 to 1e\+12 milliseconds",
        ),
        ({"records__1__work__bytes": -1}, r"records\[1\]\.work\.bytes=-1 is no quantity; 0 to 1e\+30"),
        ({"records__1__work__executed_flops": 10**31}, r"records\[1\]\.work\.executed_flops=1000.* is no quantity"),
        ({"records__1__rate__tflops": -0.5}, r"records\[1\]\.rate\.tflops=-0.5 is no quantity"),
        ({"records__1__memory": {"peak_allocated_mb": -1.0}}, r"memory\.peak_allocated_mb=-1.0 is no quantity"),
        ({"records__1__ceilings": {"copy_gbps": 1e31}}, r"records\[1\]\.ceilings\.copy_gbps=1e\+31 is no quantity"),
        (
            {"records__1__yardsticks": {"copy": YARDSTICK | {"rounds": [1]}}},
            r"records\[1\]\.yardsticks\.copy has 2 samples in 1 rounds; at least one, each with its round",
        ),
        ({"records__1__yardsticks": {"copy": YARDSTICK | {"sm_mhz": [1.0]}}}, r"copy\.sm_mhz has 1 values; none or as"),
        ({"records__1__yardsticks": {"copy": YARDSTICK | {"bytes": -1}}}, r"copy\.bytes=-1 is no quantity; 0 to 1e"),
        ({"records__1__yardsticks": {"copy": {"flops": 1}}}, r"records\[1\]\.yardsticks\.copy\.bytes: missing field"),
        (
            {"records__0__time": None, "records__0__yardsticks": {"copy": YARDSTICK}},
            r"records\[0\]\.yardsticks\.copy stands beside no time; a record with one",
        ),
        ({"records__1__time__tick_ms": -1.0}, r"records\[1\]\.time\.tick_ms=-1.0 is not a time"),
        ({"records__1__time__rounds": [1, 2]}, r"time\.rounds has 2 values; none or as many as samples, 60"),
        ({"records__0__time__timer": None}, r"records\[0\]\.time\.timer: None is not a str"),
        ({"records__5__reason": None}, r"status=skipped has no reason"),
        ({"records__0__status": "failed"}, r"status=failed has a time; only passed may"),
        ({"records__0__power_w__at_s": [1.0]}, r"records\[0\]\.power_w\.watts has 2 values; none or as many"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(change, message):
    with pytest.raises(RunFileError, match=message) as caught:
        runfile.loads(edited(**change), who="old.json")
    assert str(caught.value).startswith("old.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line=1, column 1 is not JSON"),
        ("hello", r"is not JSON"),
        ("[1, 2]", r"schema: missing field; a run file written by attnbench run"),
        ('{"time_ms": 1.0}', r"schema: missing field"),
        ('{"schema": NaN}', r"NaN is not JSON"),
        ('{"schema": 1, "run": {}, "records": []}', r"id: missing field"),
        ('{"schema": ' + "1" * 5000 + "}", r"cannot be read"),
        ("[" * 200_000, r"its content is nested too deeply; a run file written by attnbench run"),
    ],
)
def test_what_is_no_run_file_is_refused_in_one_line(text, message):
    with pytest.raises(RunFileError, match=message) as caught:
        runfile.loads(text)
    assert "\n" not in str(caught.value)


WHOLE = runfile.dumps(make_run())


@given(st.integers(1, len(WHOLE.rstrip()) - 1))
def test_a_file_cut_short_anywhere_says_so(end):
    with pytest.raises(RunFileError, match=r"run\.json: line=\d+, column \d+ is cut short; a run file written by"):
        runfile.loads(WHOLE[:end], who="run.json")


def test_a_huge_number_is_refused():
    with pytest.raises(RunFileError, match=r"is larger than any quantity"):
        runfile.loads(edited(records__0__time__samples_ms=[10**400]))


@pytest.mark.parametrize("text", ["5e-324", "1e-300", f"0.{'0' * 120}1"])
def test_a_number_below_any_quantity_is_nothing(text):
    bare = {"samples_ms": [], "rounds": [], "at_s": [], "sm_mhz": [], "median_ms": 0.015625}
    whole = edited(**{f"records__0__time__{name}": value for name, value in bare.items()})
    assert runfile.loads(whole.replace("0.015625", text)).records[0].time.median_ms == 0.0
    assert runfile.loads(whole.replace("0.015625", "1e-99")).records[0].time.median_ms == 1e-99


def test_a_byte_order_mark_is_no_obstacle(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"\xef\xbb\xbf" + WHOLE.encode())
    assert runfile.read(path) == runfile.loads(WHOLE)


def test_a_read_only_file_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("kept")
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write everything
    with pytest.raises(UsageError, match=rf"output: path={path} cannot be written \(Permission denied\)"):
        runfile.write(make_run(), path)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("run.json", "kept")]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "is not there"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "is not text in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, make, words):
    path = tmp_path / "run.json"
    make(path)
    with pytest.raises(RunFileError, match=rf"run file: path={path} {words}; a run file"):
        runfile.read(path)


@pytest.mark.parametrize("where", [".", "file.txt/run.json", "a" * 300, "a\0b"])
def test_an_output_that_cannot_be_written_is_known_before(tmp_path, where):
    (tmp_path / "file.txt").write_text("here")
    before = sorted(tmp_path.rglob("*"))
    for refuse in (check_writable, lambda path: write_bytes(path, b"x")):
        with pytest.raises(UsageError, match=r"output: path=.* cannot be written \(.*\); a file in a folder you may"):
            refuse(tmp_path / where)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_check_leaves_nothing_and_writing_makes_folders(tmp_path):
    path = tmp_path / "deep" / "er" / "run.json"
    check_writable(path)
    assert list(tmp_path.iterdir()) == []
    runfile.write(make_run(), path)
    assert runfile.read(path).id == make_run().id


def test_a_link_keeps_pointing_and_a_pipe_stays_a_pipe(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    write_bytes(pipe, b"through")
    assert reader.communicate()[0] == b"through"
    assert pipe.is_fifo()


def test_new_files_carry_the_usual_rights(tmp_path):
    write_bytes(tmp_path / "ours", b"")
    (tmp_path / "theirs").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


KILLED = """
import sys
from made_up_run import make_case, make_group, make_run
from attnbench.store.runfile import Writer
writer, records = Writer(sys.argv[1]), []
for length in range(1, 10_000):
    records += make_group(make_case(seqlen=512 + length), samples=20)
    writer.write(make_run(list(records)))
    if length == 2: print("writing", flush=True)
"""


@pytest.mark.parametrize("after", [0.0, 0.05, 0.123])
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path, after):
    path = tmp_path / "run.json"
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "tests")])}
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], env=env, stdout=subprocess.PIPE)
    with child.stdout:
        assert child.stdout.readline() == b"writing\n"
        time.sleep(after)
        child.send_signal(signal.SIGKILL)
    child.wait()
    assert len(runfile.read(path).records) % 5 == 0


def test_a_writer_builds_the_line_of_a_record_once(tmp_path, monkeypatch):
    built = []
    real = runfile.line
    monkeypatch.setattr(runfile, "line", lambda item: built.append(item.backend) or real(item))
    writer, records = runfile.Writer(tmp_path / "run.json"), make_group(make_case())
    for count in range(1, 6):
        writer.write(make_run(records[:count]))
    assert len(built) == 5
    assert runfile.read(tmp_path / "run.json").records[4].backend == "sdpa-efficient"


def test_a_record_costs_the_same_in_a_large_run_and_a_sample_next_to_nothing(tmp_path):
    def costs(times, samples):
        few = [item for seqlen in (128, 256) for item in make_group(make_case(seqlen=seqlen), samples=samples)]
        run = make_run([dataclasses.replace(item, replicate=index) for index in range(times) for item in few])
        path, writing = calls_of(lambda: runfile.write(run, tmp_path / "run.json"))
        read, reading = calls_of(lambda: runfile.read(path))
        assert len(read.records) == 10 * times
        return writing / len(read.records), reading / len(read.records)

    costs(1, 20)  # what is imported and made once
    small, large, long = costs(5, 20), costs(40, 20), costs(5, 200)
    for one, of_many, with_many, most, most_of_sample in zip(small, large, long, (2000, 1300), (30, 5), strict=True):
        assert of_many < 1.02 * one < 1.02 * most
        assert with_many - one < 180 * most_of_sample


def test_statistics_can_be_left_as_the_file_has_them():
    text = edited(records__0__time__median_ms=99.0)
    read = runfile.loads(text, statistics=False)
    assert read.records[0].time.median_ms == 99.0
    assert read.records[0].time.samples_ms == make_run().records[0].time.samples_ms
    with pytest.raises(RunFileError, match="samples_ms"):
        runfile.loads(edited(records__0__time__samples_ms=[-1.0]), statistics=False)


def test_default_path_is_fit_for_every_file_system():
    run = make_run(suite="my suites/long context.toml")
    assert runfile.default_path(run, "results") == Path(
        "results/20261120T123456Z-my-suites-long-context.toml-3f9a01bc.json"
    )
    assert runfile.default_path(make_run(started="2026-11-20T12:34:56.789+00:00")).name.startswith("20261120T123456-")


def test_ids_differ_and_now_is_utc_to_the_second():
    assert len({runfile.new_id() for _ in range(100)}) == 100
    assert len(runfile.now()) == len("2026-11-20T12:34:56Z")
    assert runfile.now().endswith("Z")
