"""The Python API of a kernel author, as a replacement of do_bench, on a CPU."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import math
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest

import attnbench
from attnbench.errors import RunFileError, Unavailable, UsageError
from attnbench.machine.device import Device
from attnbench.measure import sampling, stage
from attnbench.measure.timers import wall
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import find_place
from attnbench.store.history.reading import list_runs
from attnbench.store.history.writing import keep
from attnbench.store.runfile import default_path, read, write
from attnbench.sweep.run import Event
from made_up_run import make_run, make_time
from waiting import Clock

pytest_plugins = ["pytester"]


@pytest.fixture
def nap(monkeypatch):
    """Calls that take so many seconds, give or take a hundredth, by the clock that all measuring reads."""
    clock, calls = Clock(), itertools.count()
    clock.put_into(monkeypatch, sampling, stage, wall)
    return lambda seconds: lambda: clock.sleep(seconds * (0.99 + 0.02 * (0.618034 * next(calls) % 1)))


def test_bench_times_a_function_with_an_interval(nap) -> None:
    found = attnbench.bench(nap(0.004), name="nap", device="cpu", max_seconds=0.3)
    assert found.median_ms == pytest.approx(4.0, rel=0.005)
    low, high = found.interval_ms
    assert 3.96 <= low < found.median_ms < high <= 4.04
    assert found.sm_mhz is None
    assert re.match(r"nap: (4|3\.9)\.?\d* ±0\.\d+ ms  \(wall", str(found))
    assert "(wall, warm cache, cpu, n=" in str(found)


def test_fixed_counts() -> None:
    calls = []
    found = attnbench.bench(lambda: calls.append(1), device="cpu", warmup=3, iterations=7)
    assert found.time.num_samples == 7
    assert len(calls) == 1 + 3 + 7


def test_compare_knows_which_is_faster_and_by_how_much(nap) -> None:
    found = attnbench.compare({"slow": nap(0.04), "fast": nap(0.02)}, device="cpu", warmup=0, iterations=12)
    speedup = found.speedup("fast")
    assert speedup.ratio == pytest.approx(2, rel=0.02)
    assert speedup.verdict == "faster"
    assert list(found) == ["slow", "fast"]
    assert found["fast"].median_ms < found["slow"].median_ms
    assert "fast" in str(found)
    assert "faster" in str(found)


def test_the_baseline_may_be_any_of_them(nap) -> None:
    found = attnbench.compare({"a": nap(0.01), "b": nap(0.02)}, baseline="b", device="cpu", warmup=0, iterations=12)
    assert found.baseline == "b"
    assert list(found) == ["a", "b"]
    assert found.speedup("a").ratio == pytest.approx(2, rel=0.02)


def test_a_slower_function_fails_a_test_and_an_equal_one_does_not(nap) -> None:
    found = attnbench.compare({"ref": nap(0.01), "mine": nap(0.05)}, device="cpu", warmup=0, iterations=12)
    with pytest.raises(AssertionError, match=r"mine is 0\.(20|19)\S*x ±\S+ slower against ref; at least 0\.95x wanted"):
        found.assert_speedup("mine", at_least=0.95)
    found.assert_speedup("mine", at_least=0.05)
    for bound in (math.nan, 0, -1):  # what no ratio is below would be a test that cannot fail
        with pytest.raises(UsageError, match=f"at_least={bound} cannot be used; a number above 0"):
            found.assert_speedup("mine", at_least=bound)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: attnbench.compare({"a": print}), UsageError, "functions=1 are too few; two or more"),
        (lambda: attnbench.compare({"a": print, "b": print}, baseline="c"), UsageError, "baseline=c is not known; one"),
        (lambda: attnbench.bench(3), UsageError, r"fn=3 cannot be called; a function"),
        (lambda: attnbench.bench(print, device="tpu"), UsageError, "device=tpu is not known; auto, cpu"),
        (
            lambda: attnbench.run(jobs=-1),
            UsageError,
            "attnbench.run: jobs=-1 cannot be used; a whole number, at least 0",
        ),
        (lambda: attnbench.run(gpus="1,1"), UsageError, "attnbench.run: gpus=1,1 names GPU 1 twice"),
        (
            lambda: attnbench.run(gpus="all", device="cpu"),
            UsageError,
            "device=cpu does not go with gpus; one of the two",
        ),
        (lambda: attnbench.bench(lambda: None, device="cpu", timer="cupti"), Unavailable, "does not work on cpu"),
        (lambda: attnbench.bench(lambda: None, device="cpu", l2="hot"), UsageError, "l2=hot is not known"),
        (
            lambda: attnbench.bench(print, device="cpu", iterations=0),
            UsageError,
            "iterations=0 cannot be used; a whole",
        ),
        (
            lambda: attnbench.bench(print, device="cpu", iterations=True),
            UsageError,
            "iterations=True cannot be used; a",
        ),
        (
            lambda: attnbench.bench(print, device="cpu", max_seconds="1"),
            UsageError,
            "max_seconds='1' cannot be used; a n",
        ),
        (lambda: attnbench.bench(print, device="cpu", rel_ci=None), UsageError, "rel_ci=None cannot be used; a number"),
        (
            lambda: attnbench.run(print),
            UsageError,
            r"suite=<built-in \S+ print> is no suite; .*; attnbench.bench\(f\) ti",
        ),
        (lambda: attnbench.run(None), UsageError, "suite=None is no suite; the name of a suite, or the path of a file"),
        (lambda: attnbench.compare([print]), UsageError, r"functions=1 are too few; two or more, compare\(f, g\), "),
        (lambda: attnbench.compare(print), UsageError, "functions=1 are too few; two or more"),
        (lambda: attnbench.compare(print, [1, 2]), UsageError, r"functions=list is not a function; .*lambda: f\(x\)"),
        (lambda: attnbench.compare(3), UsageError, r"functions=int is not a function; compare\(f, g\)"),
        (lambda: attnbench.compare({"a": print}, print), UsageError, "functions=dict is not a function"),
        (
            lambda: attnbench.compare({1: print, 2: print}),
            UsageError,
            "functions=dict does not name them by texts; comp",
        ),
        (lambda: attnbench.compare({"a": print, "b": 3}), UsageError, "compare: b=3 cannot be called; a function"),
        (lambda: attnbench.bench(list(range(999))), UsageError, "bench: fn=list cannot be called; a function"),
        (
            lambda: attnbench.run(device="cpu", axes={"dtype": "float8"}),
            UsageError,
            "dtype=float8 is not known; one of",
        ),
        (
            lambda: attnbench.run(device="cpu", axes={"seqlen": []}),
            UsageError,
            r"attnbench.run: seqlen=\[\] has no value",
        ),
        (lambda: attnbench.run(device="cpu", axes={"attn_dim": 3}), UsageError, "axis=attn_dim .* mean --headdim"),
        (
            lambda: attnbench.run(device="cpu", foo=1),
            UsageError,
            "attnbench.run: setting=foo is not known; one of axes, backends, ",
        ),
        (
            lambda: attnbench.run(device="cpu", backend="sdpa"),
            UsageError,
            r"setting=backend .*; did you mean backends\?$",
        ),
        (
            lambda: attnbench.run(device="cpu", backends=[print]),
            UsageError,
            "backends=<built-in .*> is no name; names of",
        ),
        (
            lambda: attnbench.run(device="cpu", seqlen=[1024, 2048]),
            UsageError,
            r"run: setting=seqlen is an axis of the shape; axes=\{'seqlen': \[1024, 2048\]\}$",
        ),
        (
            lambda: attnbench.run(device="cpu", rel_ci="1 %"),
            UsageError,
            "run: rel_ci=1 % cannot be used; a number above 0",
        ),
        (
            lambda: attnbench.run(device="cpu", replicates=0),
            UsageError,
            "run: replicates=0 cannot be used; a whole number",
        ),
        (lambda: attnbench.run(device="cpu", timer="nope"), UsageError, "timer=nope is not known; one of"),
        (lambda: attnbench.run(device="cpu", save="/dev/null/run.json"), UsageError, "run.json cannot be written"),
        (lambda: attnbench.load("/nowhere.json"), UsageError, "nowhere.json"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(call, kind, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


async def coroutine():
    return 1


async def stream():
    yield 1


def generator():
    yield 1


class Later:
    async def __call__(self):
        return 1

    def __await__(self):
        yield


FUTURE = concurrent.futures.Future()
FUTURE.set_result(1)


@pytest.mark.parametrize(
    ("fn", "what", "todo"),
    [
        (coroutine, "a coroutine", "asyncio.run"),
        (stream, "an async generator", "asyncio.run"),
        (generator, "a generator", "list"),
        (Later(), "a coroutine", "asyncio.run"),
        (functools.partial(coroutine), "a coroutine", "asyncio.run"),
        (lambda: coroutine(), "a coroutine", "asyncio.run"),
        (lambda: generator(), "a generator", "list"),
        (lambda: stream(), "an async generator", "asyncio.run"),
        (lambda: FUTURE, "a future", "result"),
        (lambda: Later(), "an awaitable", "asyncio.run"),
        (lambda: map(abs, [1]), "an iterator", "list"),
    ],
)
def test_work_that_is_left_for_later_is_refused(fn, what, todo) -> None:
    """Warnings are errors here: a coroutine that nobody awaits would fail the test as well."""
    for call in (lambda: attnbench.bench(fn, device="cpu"), lambda: attnbench.compare(lambda: 1, fn, device="cpu")):
        with pytest.raises(UsageError, match=rf"={what} is the answer of a call, so .* not be timed; .*{todo}") as why:
            call()
        assert "\n" not in str(why.value)
    with pytest.raises(UsageError, match="cannot be called"):
        attnbench.bench(coroutine(), device="cpu")


def test_bench_calls_with_arguments() -> None:
    seen = set()
    found = attnbench.bench(lambda x, y: seen.add((x, y)), 3, "y", device="cpu", warmup=0, iterations=2)
    assert seen == {(3, "y")}
    assert found.name == "fn"


def test_an_interval_wider_than_the_time_is_shown_by_its_ends() -> None:
    wild = make_time([0.02, 0.021, 0.022, 90.0, 110.0, 100.0, 95.0], ci_low_ms=0.02, ci_high_ms=110.0, median_ms=90.0)
    assert str(attnbench.Timing("f", wild)).startswith("f: 90 (0.020 to 110) ms  (cupti, ")


def test_an_object_that_is_called_is_named_after_its_class() -> None:
    class Kernel:
        def __call__(self) -> None:
            pass

    found = attnbench.compare(Kernel(), functools.partial(Kernel()), device="cpu", warmup=0, iterations=2)
    assert list(found) == ["Kernel", "Kernel-2"]


def test_what_is_put_in_place_of_lazy_work_is_a_call_that_works() -> None:
    with pytest.raises(UsageError, match=r'compare\(\{"late": lambda: asyncio.run\(f\(\)\), …\}\)$'):
        attnbench.compare({"now": print, "late": coroutine}, device="cpu")
    with pytest.raises(UsageError, match=r"; bench\(lambda: asyncio.run\(f\(\)\)\)$"):
        attnbench.bench(coroutine, device="cpu")


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda f, g, **more: attnbench.compare(f, g, **more), ["f", "g"]),
        (lambda f, g, **more: attnbench.compare([f, g], **more), ["f", "g"]),
        (lambda f, g, **more: attnbench.compare((f, g, f), **more), ["f", "g", "f-2"]),
        (
            lambda f, g, **more: attnbench.compare(lambda: f(), lambda: g(), functools.partial(f), **more),
            ["fn", "fn-2", "f"],
        ),
        (lambda f, g, **more: attnbench.compare({"a": f, "b": g}, **more), ["a", "b"]),
    ],
)
def test_compare_takes_functions_as_they_come(call, names) -> None:
    def f():
        return 1

    def g():
        return 2

    found = call(f, g, device="cpu", warmup=0, iterations=2)
    assert list(found) == names
    assert found.baseline == names[0]


def test_what_is_returned_is_short_to_print_and_whole_as_data(nap, tmp_path) -> None:
    timing = attnbench.bench(nap(0.004), name="a<b>", device="cpu", warmup=0, iterations=400)
    both = attnbench.compare({"a<b>": nap(0.04), "b": nap(0.02)}, device="cpu", warmup=0, iterations=400)
    made = attnbench.run(
        "minimal",
        device="cpu",
        backends=["sdpa-math", "sage1"],
        warmup=1,
        iterations=3,
        axes={"seqlen": [64], "dtype": ["float32"]},
    )
    for found, lines in ((timing, 1), (both, 3), (made, 1)):
        shown = repr(found)
        assert shown.startswith(f"<{type(found).__name__} ")
        assert len(shown.splitlines()) <= lines
        assert len(shown) < 400
        html = found._repr_html_()
        assert "<b>" not in html
        assert html.startswith(("<table>", "<pre>"))
    assert "sdpa-math" in made._repr_html_()
    assert repr(made).startswith("<Result of minimal: 1 case, 1 passed, 1 skipped; ")
    assert [record.case["dtype"] for record in made.run.records] == ["fp32", "fp32"]
    assert "a&lt;b&gt;" in both._repr_html_()
    assert len(repr(timing.time)) < 1000
    assert len(repr(made.run)) < 2000
    assert len(timing.time.samples_ms) == 400


def test_a_notebook_has_the_matrix_of_many_cases_and_the_table_of_one() -> None:
    results = Path(__file__).parents[1] / "benchmarks" / "results"
    many = attnbench.load(results / "quick-h200.json")
    html = many._repr_html_()
    assert "fa3-fwd is fastest in 9 of 12 cases" in " ".join(html.split())
    assert html.count("median µs") == 1
    assert len(html) < len(str(many)) / 4
    one = attnbench.load(results / "quick-h200.json").run
    single = attnbench.Result(
        dataclasses.replace(one, records=tuple(r for r in one.records if r.case_id == one.records[0].case_id))
    )
    assert "TFLOP/s" in single._repr_html_()
    assert "TFLOP/s" not in html


def test_a_name_steers_no_terminal_and_takes_one_line() -> None:
    names = ["red \x1b[31m", "two\nlines\t\u202e"]
    found = attnbench.compare(dict.fromkeys(names, lambda: 1), device="cpu", warmup=0, iterations=20)
    assert list(found) == names
    assert found[names[1]].name == names[1]
    with pytest.raises(AssertionError) as failed:
        found.assert_speedup(names[1], at_least=1e9)
    shown = [str(found), repr(found), found._repr_html_(), str(failed.value), *(repr(found[name]) for name in names)]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", "".join(shown))
    assert r"red \u001b[31m" in str(found)
    assert [line.split("  ")[1] for line in str(found).splitlines()[1:]] == [r"red \u001b[31m", r"two lines \u202e"]
    assert str(failed.value).count("\n") == 0


def test_a_failed_test_shows_few_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_speed(attnbench):
            found = attnbench.compare(lambda: sum(range(5000)), lambda: None, device="cpu", iterations=200)
            one = found["fn"]
            found.assert_speedup("fn-2", at_least=1e9)
    """)
    done = pytester.runpytest_subprocess("-p", "no:xdist", "-l", "-vv")
    done.assert_outcomes(failed=1)
    text = done.stdout.str().partition("FAILURES")[2].partition("short test summary")[0]
    assert "at least 1e+09x wanted" in text
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) < 250


def test_a_run_is_made_saved_loaded_and_tabulated(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    made = attnbench.run(
        "minimal",
        device="cpu",
        backends=["sdpa-math"],
        save=path,
        warmup=1,
        iterations=3,
        axes={"seqlen": [64], "dtype": ["fp32"]},
    )
    assert [record.status for record in made.run.records] == ["passed"]
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]  # no history that nobody asked for
    loaded = attnbench.load(path)
    assert loaded.run == made.run
    frame = loaded.to_pandas()
    assert frame["time.median_ms"].iloc[0] == pytest.approx(made.run.records[0].time.median_ms)
    assert "sdpa-math" in str(loaded)
    assert not [line for line in str(loaded).splitlines() if line.endswith(" ")]
    cut = tmp_path / "cut.json"
    cut.write_text(path.read_text()[:100])
    with pytest.raises(RunFileError, match=r"cut\.json"):
        attnbench.load(cut)


def test_a_run_that_a_history_could_not_take_is_kept_and_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("attnbench.sweep.run.execute", lambda run, path, **rest: write(run, path) and run)
    (tmp_path / "history.sqlite").write_bytes(b"no database " * 100)
    with pytest.warns(UserWarning, match=r"not in the history .* is not a database; .*attnbench history --add"):
        made = attnbench.run("minimal", device="cpu", save=tmp_path / "run.json")
    assert attnbench.load(tmp_path / "run.json").run.id == made.run.id
    (tmp_path / "history.sqlite").unlink()
    keep(write(dataclasses.replace(made.run, id="00000001"), tmp_path / "other.json"))
    again = attnbench.run("minimal", device="cpu", save=tmp_path / "run.json").run.id
    with open_history(find_place(None, tmp_path, {}), write=False) as history:
        assert {run.id for run in list_runs(history)} == {"00000001", again}


def test_a_run_whose_file_cannot_be_written_is_handed_over(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    def execute(run, on_event, **rest):
        on_event(Event("done", run=run))
        raise UsageError("output: path=run.json cannot be written (No space left on device)")

    monkeypatch.setattr("attnbench.sweep.run.execute", execute)
    with pytest.warns(UserWarning, match=r"run\.json cannot be written"):
        made = attnbench.run("minimal", device="cpu", save=tmp_path / "run.json")
    assert made.run.suite == "minimal"


def test_a_gpu_that_is_waited_for_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(run, on_event, **rest):
        on_event(Event("waiting", text="waiting for cuda:0, which is held by another run"))
        return run

    monkeypatch.setattr("attnbench.sweep.run.execute", execute)
    with pytest.warns(UserWarning, match=r"^waiting for cuda:0, which is held by another run$"):
        attnbench.run("quick", device="cpu")


def test_a_run_of_the_folder_is_loaded_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"load: RUN=latest is not there; .*; results has no runs"):
        attnbench.load("latest")
    for number, ident in enumerate(("00aa", "00bb")):
        run = dataclasses.replace(make_run(), id=ident, started=f"2026-01-01T00:00:0{number}Z")
        write(run, default_path(run, "results"))
    assert [attnbench.load(name).run.id for name in ("latest", "previous", "00aa")] == ["00bb", "00aa", "00aa"]
    assert attnbench.load("latest", folder=tmp_path / "results").run.id == "00bb"


def test_a_run_takes_one_value_where_it_takes_several_and_paths(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(
        "attnbench.sweep.run.execute", lambda run, path, backend_files, executors, jobs, on_event: (run, backend_files)
    )
    suite = tmp_path / "own.toml"
    suite.write_text(
        'name = "own"\ntitle = "one"\nworkload = "attention"\nbackends = ["sdpa"]\naxes = { seqlen = [64] }\n'
    )
    mine = Path(__file__).parents[1] / "examples" / "my_kernel.py"
    planned, files = attnbench.run(
        suite, device="cpu", backends="eager,sdpa-math", files=mine, axes={"seqlen": 63}, max_seconds=1, iterations=None
    ).run
    assert [group.case["seqlen"] for group in planned.plan] == [63]
    several = attnbench.run(suite, device="cpu", axes={"seqlen": numpy.arange(16, 33, 16)}).run[0]
    assert [(group.case["seqlen"], type(group.case["seqlen"])) for group in several.plan] == [(16, int), (32, int)]
    assert planned.plan[0].backends == ("eager", "sdpa-math", "chunked")
    assert files == (str(mine),)
    assert planned.command == (
        "attnbench.run('own.toml', device='cpu', backends=['eager,sdpa-math'], "
        "files=['my_kernel.py'], axes={'seqlen': (63,)}, max_seconds=1)"
    )


def test_a_run_on_a_gpu_is_planned_with_the_suites_section_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.machine.devices.resolve", lambda device: Device("cuda"))
    monkeypatch.setattr("attnbench.sweep.run.execute", lambda run, path, backend_files, executors, jobs, on_event: run)
    planned = attnbench.run("quick").run
    assert planned.settings.device == "cuda:0"
    assert {group.case["dtype"] for group in planned.plan} == {"bf16"}


@pytest.mark.parametrize(("asked", "place"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cuda:0", "cuda:0")])
def test_of_several_gpus_a_function_is_timed_on_the_current_one(monkeypatch, asked: str, place: str) -> None:
    import torch

    said = []

    @contextmanager
    def current(device):
        said.append(f"current {device}")
        yield
        said.append("as before")

    for name, answer in {"is_available": True, "device_count": 2, "current_device": 1, "synchronize": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr("attnbench.measure.sampling.sample", lambda subjects, device, plan: said.append(str(device)))
    monkeypatch.setattr("attnbench.api.functions._timing", lambda *args: None)
    attnbench.bench(lambda: said.append("first call"), device=asked)
    assert said == [f"current {place}", "first call", place, "as before"]


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import attnbench, sys; print(sorted({'torch', 'numpy', 'rich', 'pandas'} & set(sys.modules)))"
    source = str(Path(attnbench.__file__).parents[1])
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env={"PYTHONPATH": source}).strip() == "[]"


def test_the_fixture_measures_and_prints_at_the_end(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    pytester.makepyfile("""
        from waiting import Clock
        from attnbench.measure import sampling, stage
        from attnbench.measure.timers import wall

        def test_speed(attnbench, monkeypatch):
            clock = Clock()
            clock.put_into(monkeypatch, sampling, stage, wall)
            found = attnbench.compare({"one": lambda: clock.sleep(0.002), "two": lambda: clock.sleep(0.004)})
            found.assert_speedup("two", at_least=0.49)
            assert attnbench.bench(lambda: clock.sleep(0.001)).median_ms == 1.0
    """)
    result = pytester.runpytest_subprocess("--attnbench-device=cpu", "--attnbench-max-seconds=0.1", "-p", "no:xdist")
    result.assert_outcomes(passed=1)
    lines = ["*= attnbench =*", "test_speed: measured in turn*", "*two*slower*", "test_speed: fn:*"]
    result.stdout.fnmatch_lines(lines)


TIMED = """
    import pytest
    from waiting import Clock
    from attnbench.measure import sampling, stage
    from attnbench.measure.timers import wall

    SECONDS = {seconds}

    @pytest.fixture
    def clock(monkeypatch):
        clock = Clock()
        clock.put_into(monkeypatch, sampling, stage, wall)
        return clock

    def test_speed(attnbench, clock):
        attnbench.compare({{"one": lambda: clock.sleep(0.002), "two": lambda: clock.sleep(SECONDS)}})

    def test_twice(attnbench, clock):
        attnbench.bench(lambda: clock.sleep(0.001), name="first")
        attnbench.bench(lambda: clock.sleep(0.001), name="second")
"""


def test_what_the_fixture_measures_is_kept_and_compared(pytester: pytest.Pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    words = ("--attnbench-device=cpu", "--attnbench-max-seconds=0.1", "-p", "no:xdist")
    pytester.makepyfile(test_kept=TIMED.format(seconds=0.004))
    result = pytester.runpytest_subprocess(*words, "--attnbench-save")
    result.stdout.fnmatch_lines(["written: results/*-pytest-*.json"])
    (path,) = (pytester.path / "results").glob("*.json")
    run = read(path)
    assert [(record.case_id, record.backend) for record in run.records] == [
        ("test_kept.py::test_speed", "one"),
        ("test_kept.py::test_speed", "two"),
        ("test_kept.py::test_twice:1", "first"),
        ("test_kept.py::test_twice:2", "second"),
    ]
    assert run.records[1].speedup.ratio == pytest.approx(0.5)

    pytester.makepyfile(test_kept=TIMED.format(seconds=0.006))
    result = pytester.runpytest_subprocess(*words, "--attnbench-compare", "--attnbench-save=again.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*two*slower*", "*first*same*", "written: again.json"])
    assert len(read(pytester.path / "again.json").records) == 4


def test_a_run_to_compare_with_that_is_not_there_ends_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): raise AssertionError")
    result = pytester.runpytest_subprocess("--attnbench-compare=previous", "-p", "no:xdist")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--attnbench-compare: RUN=previous is not there; *; results has no runs"])
