"""`attnbench load`: requests, output, files and refusals; one load of five seconds by MLPerf's LoadGen."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import json
import re
import signal
import types
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import torch
from tests.loadtest.test_find_rate import at

from attnbench.cli import load as cli_load
from attnbench.cli import loading, main
from attnbench.cli.parser import Parser
from attnbench.errors import AttnbenchError
from attnbench.loadtest import run as load_run
from attnbench.loadtest.engine import ModelEngine
from attnbench.loadtest.setup import Options, a_core_for_the_generator
from attnbench.machine import devices
from attnbench.machine.device import Device
from attnbench.models.hstu_ranking.checkpoint import save
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.presentation.load import ended, markdown, notes, tables
from attnbench.report.load import render_load
from attnbench.store import load_file
from attnbench.store.load_file import Highest, LoadRun, Point, derived
from attnbench.store.schema import load_schema

ROOT = Path(__file__).resolve().parents[2]
LOAD = ["load", "hstu-serving", "--device", "cpu", "--config", "tiny"]


@pytest.fixture(autouse=True)
def short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_run, "PROBE_S", 0.05)


def only(folder: Path) -> Path:
    found = list(folder.glob("*.json"))
    assert len(found) == 1
    return found[0]


def test_five_seconds_by_loadgen_are_served_shown_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlperf_loadgen")
    page, plots = tmp_path / "load.html", tmp_path / "plots"
    assert (
        main(
            [
                *LOAD,
                "--rate",
                "20",
                "--duration",
                "5",
                "--slo-ms",
                "50,100",
                "--out",
                str(tmp_path / "out"),
                "--html",
                str(page),
                "--plots",
                str(plots),
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    path = only(tmp_path / "out")
    run = load_file.read(path)
    point = run.points[0]
    assert point.issued == point.answered + sum(point.refused.values()) > 40
    assert point.generator.startswith("mlcommons-loadgen ")
    assert point.cache["hit"] + point.cache["host_hit"] + point.cache["missed"] == point.cache["tokens"] > 0
    assert sum(point.batch_size) == point.answered
    assert max(point.batch_size) <= 4
    assert point.loadgen["result"] in ("VALID", "INVALID")
    assert point.loadgen["p50_ns"] / 1e6 == pytest.approx(point.latency.p50, rel=0.25)  # ranks, not between them
    assert [one.slo_ms for one in point.goodput] == [50.0, 100.0]
    assert "arrived" in err
    assert "answered" in err
    assert "this is no MLPerf result" in " ".join(out.split())
    assert "latency from the scheduled time" in out
    assert page.read_text().count("<table>") == 3
    drawn = page.read_text().partition("<svg")[2].partition("</svg>")[0]
    assert "currentColor" in drawn  # it follows the page, which is light or dark
    assert "#ffffff" not in drawn
    assert sorted(one.name for one in plots.iterdir()) == [f"latency_over_rate_tiny.{one}" for one in ("png", "svg")]

    assert main(["show", run.id, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == out
    assert main(["show", "--out", str(tmp_path / "out")]) == 0  # it is the latest
    assert capsys.readouterr().out == out
    assert main(["report", str(path), "--html", "-"]) == 0
    assert capsys.readouterr().out == page.read_text()
    twice = [str(path)] * 2
    for words in (["export", str(path), "--csv", "-"], ["diff", *twice]):
        assert main(words) == 2
        assert "content=a load is no run" in capsys.readouterr().err
    assert main(["report", *twice]) == 2
    assert capsys.readouterr().err == f"attnbench report: RUN={path} is the result of a load; one load alone, or runs\n"
    assert main(["export", "latest", "--csv", "-", "--out", str(tmp_path / "out")]) == 2
    assert "has no runs" in capsys.readouterr().err


def test_users_who_return_need_no_loadgen_and_json_goes_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_run.importlib.util, "find_spec", lambda name: None)
    assert main([*LOAD, "--rate", "40", "--duration", "0.5", "--no-save", "--json", "-"]) == 3
    assert capsys.readouterr().err == (
        "load: mlperf_loadgen is not installed; pip install 'attnbench[load]'; or --scenario gaps, which needs none\n"
    )
    assert (
        main(
            [
                *LOAD,
                "--rate",
                "40",
                "--duration",
                "0.5",
                "--gap-s",
                "0.2",
                "--long-history",
                "truncate",
                "--host-pages",
                "50",
                "--offload-chunk",
                "64",
                "--no-save",
                "--json",
                "-",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    run = load_file.loads(out)
    assert run.points[0].issued == run.points[0].answered == 20
    assert (run.settings["users"], run.settings["offload_chunk"]) == (8, 64)
    assert run.points[0].scenario == "gaps"
    assert run.points[0].generator == "attnbench"
    assert run.command == (
        "attnbench load hstu-serving --config tiny --rate 40 --duration 0.5 --gap-s 0.2 "
        "--host-pages 50 --offload-chunk 64 --long-history truncate --device cpu"
    )
    assert "latency from the scheduled time" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("host_pages", "small"), [(9, True), (5000, False)])
def test_host_memory_that_is_smaller_than_the_pool_is_said(host_pages, small, capsys):
    words = [*LOAD, "--rate", "40", "--duration", "0.2", "--gap-s", "0.2", "--host-pages", str(host_pages), "--no-save"]
    assert main(words) == 0
    assert ("host memory has 9 pages, the pool " in "".join(capsys.readouterr())) is small


@pytest.mark.parametrize("cache", [[], ["--no-cache"]], ids=str)
def test_graphs_that_have_no_memory_are_said(cache, capsys, monkeypatch):
    """As after a load on a GPU: here nothing is captured."""
    launch = ModelEngine.launch

    def without_graphs(self, requests):
        self.graphs = None
        found = launch(self, requests)
        self.graphs = types.SimpleNamespace(full=True, captured=5)
        return found

    monkeypatch.setattr(ModelEngine, "launch", without_graphs)
    words = [*LOAD, "--rate", "40", "--duration", "0.2", "--gap-s", "0.2", "--no-save", *cache]
    assert main(words) == 0
    assert "note  the GPU had no memory for more than 5 graphs: other steps ran" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["load", "video"], "attnbench load: NAME=video is not known; one of hstu-serving"),
        ([*LOAD, "--scenario", "poisson"], "--scenario=poisson is not known; one of gaps, offline, replay, server"),
        (
            [*LOAD, "--scenario", "replay"],
            "--scenario=replay has no requests; --source DIR; attnbench data kuairand-1k",
        ),
        (
            [*LOAD, "--gap-s", "1", "--scenario", "server"],
            "--gap-s=1 does not go with --scenario server; --scenario gaps",
        ),
        ([*LOAD, "--offload-chunk", "0"], "--offload-chunk=0 cannot be used; a whole number, at least 1"),
        ([*LOAD, "--gap-s", "1", "--users", "3"], "--gap-s=1 does not go with --users; one of the two"),
        ([*LOAD, "--find-rate", "--scenario", "offline"], "--find-rate=on does not go with --scenario offline"),
        ([*LOAD, "--rate", "10,fast"], "--rate=fast cannot be used; a number above 0 and below 1e+06"),
        ([*LOAD, "--rate", "0"], "--rate=0 cannot be used"),
        (
            [*LOAD, "--rate", "0.1", "--duration", "1"],
            "load: --rate=0.1 gives 0 requests in 1 s; 1 to 20000000 requests",
        ),
        ([*LOAD, "--rate", "10,,20"], "--rate='' cannot be used"),
        ([*LOAD, "--rate", "nan"], "--rate=nan cannot be used"),
        ([*LOAD, "--slo-ms", "-5"], "--slo-ms=-5 cannot be used"),
        ([*LOAD, "--duration", "inf"], "--duration=inf cannot be used"),
        ([*LOAD, "--max-batch", "0"], "--max-batch=0 cannot be used; a whole number, at least 1"),
        ([*LOAD, "--max-wait-ms", "-1"], "--max-wait-ms=-1 cannot be used; a number from 0"),
        ([*LOAD, "--page-size", "48"], "--page-size=48 cannot be used; one of 32, 64, 128"),
        ([*LOAD, "--num-candidates", "21"], "--num-candidates=21 is over the most of tiny; 0 to 20"),
        ([*LOAD, "--attention", "flash"], "--attention=flash is not known; one of paged, gathered, reference"),
        ([*LOAD, "--graph"], "--graph=true captures nothing on a CPU; a GPU"),
        ([*LOAD, "--attention", "paged"], "--attention=paged has no kernels for a CPU; reference"),
        ([*LOAD, "--on-host-hit", "never"], "--on-host-hit=never is not known; one of reload, recompute, auto"),
        ([*LOAD, "--long-history", "drop"], "--long-history=drop is not known; one of truncate, refuse"),
        ([*LOAD, "--dtype", "int8"], "--dtype=int8 is not known; one of fp32, fp16, bf16"),
        ([*LOAD, "--users", "0"], "--users=0 cannot be used"),
        ([*LOAD, "--burstiness", "0", "--scenario", "gaps"], "--burstiness=0 cannot be used"),
        (["load", "hstu-serving", "--config", "huge"], "--config=huge is not known; one of bench, dlrm-v3"),
        ([*LOAD, "--json", "-", "--md", "-"], "--md=- wants stdout, as --json does; one of the two"),
        ([*LOAD, "--json", "/nowhere/at/all/\0"], "cannot be written"),
        ([*LOAD, "--checkpoint", "no.safetensors"], "--checkpoint=no.safetensors is not there; a safetensors file"),
        ([*LOAD, "--checkpoint", "x" * 300], "x is not there; a safetensors file"),
        ([*LOAD, "--source", "x" * 300], "x is not there; a folder of prepared files; attnbench data kuairand-1k"),
        ([*LOAD, "--dry-run", "--checkpoint", "no.safetensors"], "--checkpoint=no.safetensors is not there"),
        (
            [*LOAD, "--dry-run", "--checkpoint", __file__],
            "test_load_command.py has no header that fits its size; a saf",
        ),
        ([*LOAD, "--only-user", "7"], "--only-user=7 does not go with --scenario server; --scenario replay"),
        (
            [*LOAD, "--pool-pages", "9", "--pool-share", "1"],
            "--pool-pages=9 does not go with --pool-share; one of the two",
        ),
        ([*LOAD, "--no-cache", "--pool-pages", "9"], "--pool-pages=9 says nothing without a cache; none"),
        ([*LOAD, "--no-cache", "--host-pages", "9"], "--host-pages=9 says nothing without a cache; none"),
        (
            ["load", "hstu-serving", "--config", "dlrm-v3", "--page-size", "64"],
            "--page-size=64 says nothing with --config dlrm-v3, which can have no cache; none",
        ),
        (
            [*LOAD, "--scenario", "offline", "--rate", "10,20"],
            "--rate=10,20 has several values, --scenario offline takes one; one of them",
        ),
        ([*LOAD, "--find-rate", "--rate", "10,20"], "--rate=10,20 has several values, --find-rate takes one; one of"),
        ([*LOAD, "--offload-chunk", "64"], "--offload-chunk=64 says nothing without host memory; with --host-pages N"),
        ([*LOAD, "--on-host-hit", "auto", "--host-pages", "0"], "--on-host-hit=auto says nothing without host memory"),
        ([*LOAD, "--source", "here", "--users", "3"], "--users=3 does not go with --source, which has its own"),
        ([*LOAD, "--source", "here"], "load: --source=here is not there; a folder of prepared files; attnbench data"),
        ([*LOAD, "--source", __file__], "test_load_command.py is a file; a folder of prepared files; attnbench data"),
        ([*LOAD, "--source", "."], "load: --source=. has no processed_seqs_inference.csv; a folder of prepared"),
        ([*LOAD, "--pool-pages", "6"], "--pool-pages=6 are fewer than the 7 of one user; 7 or more"),
        ([*LOAD, "--pool-share", "0.001"], "gives 1 pages, fewer than the 7 of one user; a larger share"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "cache", "loads", "time"),
    [
        ([], "70 pages, 1.15 MB, in the pool", "1, server: 50 requests/s", "5 s of arrivals each, 5 s in all"),
        (
            ["--scenario", "gaps", "--rate", "10,20", "--duration", "3", "--host-pages", "100", "--page-size", "64"],
            "in the pool; 100 pages, 3.28 MB, in the host memory; 64 tokens a page",
            "2, gaps: 10, 20 requests/s",
            "3 s of arrivals each, 6 s in all, and up to 30 s more",
        ),
        (["--scenario", "offline", "--no-cache"], "none", "1, offline: all requests at once", "5 s in all"),
        (["--find-rate", "--slo-ms", "5,9"], "", "at most 24, server: for the highest rate within 5, 9 ms", "120 s in"),
        (["--users", "1", "--rate", "3"], "7 pages", "1, server: 3 requests/s", ""),
    ],
)
def test_a_dry_run_says_what_would_be_served_and_makes_no_model(
    words, cache, loads, time, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnbench.loadtest.setup.make_model", None)
    assert main([*LOAD, *words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("hstu-serving, model tiny on cpu: ")
    assert lines[1] == f"model  tables of {4 * 32 * (68 + 202) / 1e3:.3g} kB"  # of tokens and positions, in fp32
    for line, name, said in zip(lines[2:5], ("cache  ", "loads  ", "time   "), (cache, loads, time), strict=True):
        assert line.startswith(name)
        assert said in line
    assert lines[5].startswith("command: attnbench load hstu-serving --config tiny")
    assert "dry" not in lines[5]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("attention", ["reference", "gathered"])
def test_a_graph_of_one_steps_lengths_is_refused_on_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    monkeypatch.setattr(devices, "resolve", lambda _: Device("cuda"))
    assert main([*LOAD, "--graph", "--attention", attention]) == 2
    assert f"--attention={attention} does not go with --graph, it is of one step's lengths; paged\n" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "device", "graph"),
    [
        ([], "cuda", True),
        (["--no-graph"], "cuda", False),
        (["--attention", "paged"], "cuda", True),
        (["--attention", "gathered"], "cuda", False),
        (["--no-cache"], "cuda", False),
        (["--no-cache", "--graph"], "cuda", True),
        ([], "cpu", False),
        (["--no-graph"], "cpu", False),
    ],
)
def test_steps_are_graphs_where_they_can_be(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], device: str, graph: bool
) -> None:
    monkeypatch.setattr(devices, "resolve", lambda _: Device(device))
    made: list[bool] = []

    def stop(options: Options) -> str:
        made.append(options.graph)
        raise AttnbenchError("stopped")

    monkeypatch.setattr(cli_load, "options_of", lambda args, of=cli_load.options_of: stop(of(args)))
    assert main(["load", "hstu-serving", "--config", "tiny", *flags]) == 1
    assert made == [graph]


def test_a_load_is_carried_out_on_its_gpu_as_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of another GPU would say that scores have come before they have."""
    entered: list[str] = []

    @contextlib.contextmanager
    def device(name: str) -> Iterator[None]:
        entered.append(name)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    for one in (Device("cuda", 1), Device("cpu")):
        with a_core_for_the_generator(one):
            assert entered == ["cuda:1"]


# ── the file ───────────────────────────────────────────────────────────────────────────────────────


def example() -> LoadRun:
    from attnbench.machine.device import CPU
    from attnbench.machine.fingerprint import environment

    point = derived(
        load_file.dataclasses.replace(
            at(100.0, limit=50.0),
            backlog=90,
            late_ms=(2.5,) * 200,
            batch_size=(4,) * 50,
            host_ms=(1.25,) * 50,
            device_ms=(3.0,) * 50,
            issued=203,
            refused={"unknown user": 3},
            cache={"tokens": 10, "hit": 6, "missed": 4},
        ),
        (50.0, 1000.0),
    )
    return LoadRun(
        id="ab12",
        workload="hstu-serving",
        model="tiny",
        device="cpu",
        command="attnbench load",
        started="2026-01-01T00:00:00Z",
        settings={"users": 5},
        environment=environment(CPU),
        points=(point,),
        highest=(Highest(slo_ms=50.0, rate=80.0),),
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_too_wide_for_a_terminal_come_in_parts_whose_words_are_whole(width: int) -> None:
    from rich.console import Console

    stream = io.StringIO()
    render_load(example(), Console(file=stream, width=width))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    for table in tables(example()):
        for word in table.heading[2:]:
            [place] = [
                n for n, line in enumerate(lines) if line.startswith("load ") and word in re.split(" {2,}", line)
            ]
            assert lines[place + 1].split()[:2] == ["server", "100.0"]


def test_statistics_are_those_of_the_series_whatever_the_file_says(tmp_path: Path) -> None:
    run = example()
    path = load_file.write(run, tmp_path / "a.load.json")
    assert load_file.read(path) == run
    text = path.read_text()
    assert load_file.is_load(text)
    data = json.loads(text)
    data["points"][0]["latency"]["p99"] = 0.001
    data["points"][0]["goodput"][0]["share"] = 1.0
    found = load_file.loads(json.dumps(data)).points[0]
    assert found == run.points[0]
    assert found.latency.p99 == 900.0
    assert found.goodput[0].share == pytest.approx(196 / 203)
    assert found.service.p50 == 9.0


def test_a_percentile_of_too_few_requests_is_not_known() -> None:
    spread = load_file.spread([float(one) for one in range(100)])
    assert spread is not None
    assert spread.p99 is not None
    assert spread.p999 is None
    few = load_file.spread([1.0, 2.0])
    assert few is not None
    assert (few.p50, few.p90, few.max) == (1.5, None, 2.0)
    assert load_file.spread([]) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["points"][0].update(issued=5), r"points\[0\].issued=5 is not answered \+ refused; 203"),
        (lambda data: data["points"][0]["latency_ms"].pop(), "latency_ms has 199 values; one of each answered"),
        (lambda data: data["points"][0].update(whole_s=-1), "-1.0 is no time or rate"),
        (lambda data: data["points"][0]["queue_ms"].__setitem__(3, 1e99), r"queue_ms\[3\]=1e\+99 cannot be"),
        (lambda data: data["points"][0].update(refused={"x": -1}), "a count is below 0"),
        (lambda data: data.update(schema=2), "schema=2 is not known; 1 to 1; upgrade attnbench"),
        (lambda data: data.update(more=1), "are not those of a load"),
        (lambda data: data["load"].update(id="../x"), "is not the id of a run"),
        (lambda data: data["points"][0].pop("issued"), "issued: missing field"),
    ],
)
def test_a_file_that_cannot_be_is_refused(change, said: str) -> None:
    data = json.loads(load_file.dumps(example()))
    change(data)
    with pytest.raises(load_file.RunFileError, match=said) as raised:
        load_file.loads(json.dumps(data), who="a.load.json")
    assert str(raised.value).startswith("a.load.json: ")


def test_the_command_of_a_load_without_graphs_says_so() -> None:
    parser = Parser("load", "of a load")
    cli_load.add_arguments(parser)
    for words, said in (
        (["--no-graph"], "attnbench load hstu-serving --no-graph --rate 5"),
        (["--graph"], "attnbench load hstu-serving --rate 5 --graph"),
        ([], "attnbench load hstu-serving --rate 5"),
    ):
        command = loading._command(parser.parse_args(["hstu-serving", "--rate", "5", *words]))
        assert command == said
        assert loading._command(parser.parse_args(command.split()[2:])) == said


def test_each_rate_has_the_mean_gap_that_its_users_have() -> None:
    """All rates have the users of the first, so the gap asked for is that of the first alone."""
    points = [
        dataclasses.replace(example().points[0], scenario="gaps", asked_rate=rate, loadgen={}) for rate in (50.0, 100.0)
    ]
    run = dataclasses.replace(example(), points=tuple(points), settings=dict(example().settings) | {"users": 10})
    requests = tables(run)[2]
    column = requests.heading.index("mean gap s")
    assert [row[column] for row in requests.rows] == ["0.200", "0.100"]
    assert "mean gap s" not in tables(example())[2].heading


def test_one_request_of_a_rate_is_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlperf_loadgen")
    assert main([*LOAD, "--rate", "1", "--duration", "1", "--no-save", "--json", "-"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["issued"], point["answered"]) == (1, 1)
    assert point["offered_rate"] is None  # one request has no rate


def test_an_interrupted_load_is_not_held_against_the_rate_asked_for() -> None:
    point = dataclasses.replace(example().points[0], asked_rate=100.0, offered_rate=130.0, interrupted=False)
    said = "offered +30.0 % from the rate asked for, 130/s"
    for interrupted in (False, True):
        run = dataclasses.replace(example(), points=(dataclasses.replace(point, interrupted=interrupted),))
        assert any(said in note for note in notes(run)) != interrupted


def test_a_note_that_many_loads_share_is_said_once_with_the_worst() -> None:
    run = example()
    [point] = run.points
    loads = [
        dataclasses.replace(point, asked_rate=rate, backlog=backlog, refused={"unknown user": 1})
        for rate, backlog in ((100.0, 90), (200.0, 140), (400.0, 120))
    ]
    said = notes(dataclasses.replace(run, points=loads))
    assert [note for note in said if "above capacity" in note] == [
        "server 200/s and 2 more loads: above capacity: 140 requests had no answer when the last one arrived"
    ]
    assert sum("unknown user" in note for note in said) == 3, "requests that were refused are counted load by load"
    late = [
        dataclasses.replace(one, late=dataclasses.replace(one.late, p99=p99), offered_rate=one.asked_rate * rate)
        for one, p99, rate in zip(loads, (9.5, 12.5, 3.5), (1.02, 0.9, 1.05), strict=True)
    ]
    said = notes(dataclasses.replace(run, points=late))
    assert any(note.startswith("server 200/s and 2 more loads: the generator was late, p99 12.5") for note in said)
    assert "server 200/s and 2 more loads: offered -10.0 % from the rate asked for, 180/s" in said
    many = dataclasses.replace(loads[0], asked_rate=20000.0)
    assert any(note.startswith("server 20000/s: ") for note in notes(dataclasses.replace(run, points=[many])))
    assert ended(many).startswith("server 20000/s: ")
    said = notes(dataclasses.replace(run, points=loads[:2]))
    assert any(note.startswith("server 200/s and 1 more load: above capacity") for note in said)


def test_tables_and_notes_say_what_happened() -> None:
    run = example()
    latency, parts, requests = tables(run)
    assert latency.heading[:5] == ["load", "asked/s", "offered/s", "answered/s", "p50 ms"]
    assert dict(zip(requests.heading, requests.rows[0], strict=True)) == {
        "load": "server",
        "asked/s": "100.0",
        "issued": "203",
        "answered": "200",
        "refused": "3",
        "open at last arrival": "90",
        "split batches": "0",
        "tokens": "10",
        "hit %": "60.0",
        "host hit %": "0.0",
        "missed %": "40.0",
    }
    assert dict(zip(parts.heading, parts.rows[0], strict=True))["mean batch"] == "4.00"
    said = "\n".join(notes(run))
    assert "server 100/s: 3 refused: unknown user" in said
    assert "above capacity: 90 requests had no answer when the last one arrived" in said
    assert "the generator was late, p99 2.50 ms" in said
    text = markdown(run)
    assert "| server | 100.0 |" in text
    assert "80.00 requests/s" in text or "80 requests/s is the highest rate tried" in text


def test_offline_says_why_a_cache_that_evicts_finds_nobody() -> None:
    run = example()

    def said(scenario: str, evicted: int, hit: int = 0) -> bool:
        cache = {"tokens": 10, "hit": hit, "missed": 10 - hit, "evicted_users": evicted}
        point = dataclasses.replace(run.points[0], scenario=scenario, cache=cache)
        return any("LoadGen repeats one order" in note for note in notes(dataclasses.replace(run, points=(point,))))

    assert said("offline", 5)
    assert not said("offline", 0)
    assert not said("offline", 5, hit=9), "users who came anew took the places of those who ended"
    assert not said("server", 5)


def test_what_was_measured_before_a_failure_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = iter([at(10.0, limit=50.0), None])

    def returning(self, rate: float, burstiness: float) -> Point:
        if (found := next(loads)) is None:
            raise AttnbenchError("load: the generator's process ended before it was done: killed")
        return found

    monkeypatch.setattr(load_run.Bench, "returning", returning)
    assert main([*LOAD, "--scenario", "gaps", "--rate", "10,20", "--out", str(tmp_path)]) == 1
    assert "ended before it was done: killed" in capsys.readouterr().err
    assert [point.asked_rate for point in load_file.read(only(tmp_path)).points] == [10.0]


@pytest.mark.parametrize(("scenario", "starts"), [("gaps", "scheduled"), ("server", "by_loadgen")])
def test_the_generator_starts_when_the_server_is_ready(
    scenario: str, starts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It issues from its start: a collection that began after it would make the first requests wait."""
    if scenario == "server":
        pytest.importorskip("mlperf_loadgen")
    happened: list[str] = []
    collect, start = gc.collect, getattr(load_run, starts)
    monkeypatch.setattr(gc, "collect", lambda *given: (happened.append("collected"), collect(*given))[1])
    monkeypatch.setattr(load_run, starts, lambda *given: (happened.append("started"), start(*given))[1])
    assert main([*LOAD, "--scenario", scenario, "--rate", "20", "--duration", "1", "--out", str(tmp_path)]) == 0
    begun = happened.index("started")
    assert happened[begun - 1] == "collected"
    assert "collected" not in happened[begun:]


def test_a_load_without_any_answer_is_kept_and_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HstuRanking(config_of("tiny"), dtype=torch.float32)
    model.towers.biases[0].fill_(torch.nan)
    save(model, tmp_path / "nan.safetensors")
    words = ["--scenario", "gaps", "--duration", "1", "--checkpoint", str(tmp_path / "nan.safetensors")]
    assert main([*LOAD, *words, "--out", str(tmp_path / "kept")]) == 3
    said = capsys.readouterr().err.splitlines()[-1]
    (point,) = load_file.read(only(tmp_path / "kept")).points
    assert point.refused == {"refused by load: scores": point.issued}
    assert said == f"attnbench load: requests={point.issued} have no answer; refused by load: scores"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_keeps_the_load_until_then_and_begins_no_other(
    number: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up, launch, left = load_run.Bench.warm_up, ModelEngine.launch, []

    def warmed(self) -> None:
        warm_up(self)
        left.extend(range(5))

    def interrupted(self, requests):
        if left and left.pop() == 0:
            signal.raise_signal(number)
        return launch(self, requests)

    monkeypatch.setattr(load_run.Bench, "warm_up", warmed)
    monkeypatch.setattr(ModelEngine, "launch", interrupted)
    assert main([*LOAD, "--scenario", "gaps", "--rate", "200,300", "--duration", "2", "--out", str(tmp_path)]) == code
    capsys.readouterr()
    (point,) = load_file.read(only(tmp_path)).points
    assert point.interrupted
    assert point.answered >= 4
    assert point.issued == point.answered + point.refused["interrupted"]


def test_ctrl_c_ends_the_search_of_all_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 ms it is between 100 and 200 requests a second when it ends; of 100 ms 400 would be next."""
    tried: list[float] = []

    def returning(self, rate: float, burstiness: float) -> Point:
        tried.append(rate)
        found = dataclasses.replace(at(rate, limit=1000.0), latency_ms=(80.0 if rate > 100 else 10.0,) * 200)
        if len(tried) < 3:
            return found
        self.ending = KeyboardInterrupt()
        return dataclasses.replace(found, interrupted=True)

    monkeypatch.setattr(load_run.Bench, "returning", returning)
    words = ["--scenario", "gaps", "--rate", "100", "--find-rate", "--slo-ms", "50,100"]
    assert main([*LOAD, *words, "--out", str(tmp_path)]) == 130
    assert tried == [100.0, 200.0, 150.0]
    assert [one.slo_ms for one in load_file.read(only(tmp_path)).highest] == [50.0]


def test_the_published_schema_is_that_of_the_file_and_the_file_fits_it() -> None:
    published = json.loads((ROOT / "docs/load-file.schema.json").read_text("utf-8"))
    assert published == load_schema(), "schema.publish('docs/load-file.schema.json', schema.load_schema())"
    jsonschema.Draft202012Validator.check_schema(published)
    data = json.loads(load_file.dumps(example()))
    jsonschema.validate(data, published)
    data["points"][0]["more"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, published)
