"""`attnbench report`, and `--html` on the verbs that write results."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.report import html
from attnbench.store.runfile import write
from made_up_run import make_case, make_group, make_run


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    """A run file of one case in the current folder."""
    monkeypatch.chdir(tmp_path)
    return write(make_run(make_group(make_case(), samples=8)), tmp_path / "sweep.json")


def test_the_page_goes_beside_the_run_file(attnbench, run_file):
    answer = attnbench("report sweep.json")
    assert (answer.code, answer.out, answer.err) == (0, "written: sweep.html\n", "")
    text = Path("sweep.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "flash-attn-3" in text


def test_a_run_is_found_by_its_id(attnbench, run_file):
    Path("results").mkdir()
    run_file.rename("results/20261120T123456Z-compare-3f9a01bc.json")
    answer = attnbench("report 3f9a01bc")
    assert answer.out == "written: results/20261120T123456Z-compare-3f9a01bc.html\n"
    assert attnbench("report 00000000").code == 2


def test_several_runs_make_one_page(attnbench, run_file):
    write(make_run(id="00000001"), "other.json")
    assert attnbench("report sweep.json other.json").out == "written: sweep-and-1-more.html\n"
    answer = attnbench("report sweep.json other.json --html both.html")
    assert answer.out == "written: both.html\n"
    assert Path("both.html").read_text() == Path("sweep-and-1-more.html").read_text()


def test_a_run_named_twice_is_refused(attnbench, run_file):
    answer = attnbench("report sweep.json ./sweep.json")
    assert answer.code == 2
    assert answer.err == "attnbench report: RUN=sweep.json is run 3f9a01bc, as sweep.json is; each run once\n"


def test_the_page_goes_into_a_pipe_alone(attnbench, run_file):
    answer = attnbench("report sweep.json --html -")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("<!doctype html>")
    assert answer.out.rstrip().endswith("</html>")
    assert not Path("sweep.html").exists()


def test_pictures_alone_are_no_page(attnbench, run_file):
    answer = attnbench("report sweep.json --plots plots")
    files = [path for path in Path("plots").rglob("*") if path.is_file()]
    assert answer.out == f"written: {len(files)} files in plots\n"
    assert {path.suffix for path in files} == {".png", ".svg"}
    assert not Path("sweep.html").exists()


CUT = '{"schema": 1,\n"run": {"id": "3f9a01bc", "suite": "qu'


@pytest.mark.parametrize(("content", "words"), [
    (CUT, "is cut short"),
    ("", "is not JSON"),
    ('{"schema": 99, "run": {}, "records": []}', "schema=99 is newer than this attnbench reads"),
    ('{"name": "not ours"}', "schema: missing field"),
    ("[1, 2, 3]", "schema: missing field"),
    ("\0\1\2", "is not JSON"),
])  # fmt: skip
def test_a_bad_run_file_is_one_line_and_leaves_the_old_page(attnbench, run_file, content, words):
    Path("bad.json").write_text(content)
    Path("old.html").write_text("the page of before")
    answer = attnbench("report sweep.json bad.json --html old.html")
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("bad.json: ")
    assert words in answer.err
    assert answer.err.count("\n") == 1
    assert Path("old.html").read_text() == "the page of before"
    assert sorted(path.name for path in Path().iterdir()) == ["bad.json", "mine.py", "old.html", "sweep.json"]


@pytest.mark.parametrize("target", ["folder", "sweep.json/page.html", "\0.html"])
def test_a_page_that_cannot_be_written_is_refused_before_it_is_made(attnbench, run_file, target, monkeypatch):
    Path("folder").mkdir()
    monkeypatch.setattr(html, "page", None)  # is not asked
    answer = attnbench(["report", "sweep.json", "--html", target])
    assert answer.code == 2
    assert "cannot be written" in answer.err
    assert answer.err.count("\n") == 1


def test_a_page_half_written_is_not_there(attnbench, run_file, monkeypatch):
    Path("sweep.html").write_text("the page of before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    answer = attnbench("report sweep.json")
    assert answer.code == 2
    assert "No space left on device" in answer.err
    assert Path("sweep.html").read_text() == "the page of before"
    assert not list(Path().glob(".*tmp"))


def test_no_run_is_asked_for(attnbench):
    answer = attnbench("report")
    assert answer.code == 2
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("verb", ["run quick --device cpu", "compare --device cpu", "check quick --device cpu"])
def test_html_goes_with_every_verb_that_measures(attnbench, sweep, verb):
    answer = attnbench(f"{verb} --backends sdpa,eager --html page.html --json page.json")
    assert answer.code == 0
    assert ", page.html, page.json\n" in answer.out + answer.err  # compare prints a seed's table alone into a pipe
    text = Path("page.html").read_text("utf-8")
    assert f"Run <code>{json.loads(Path('page.json').read_text())['run']['id']}</code>" in text


def test_html_of_an_export_can_be_taken_apart(attnbench, tmp_path):
    records = [record for dtype in ("bf16", "fp16") for record in make_group(make_case(dtype=dtype), samples=8)]
    write(make_run(records), tmp_path / "sweep.json")
    answer = attnbench("export sweep.json --html sweep.html --by dtype")
    assert answer.out == "written: sweep.dtype-bf16.html, sweep.dtype-fp16.html\n"


def test_html_of_an_import(attnbench):
    Path("sweep.csv").write_text(
        "Kernel Name,d_head,seq_len,Mean,Median,Min,Max,StdDev,Relative Performance,Attn TFLOP/s\n"
        "Reference,64,512,1.0,1.0,0.9,1.1,0.1,1.0,1.0\n"
    )
    answer = attnbench("import sweep.csv --no-save --html page.html")
    assert (answer.code, answer.err) == (0, "")
    assert "page.html" in answer.out
    assert "Reference" in Path("page.html").read_text("utf-8")


@pytest.mark.parametrize(
    "words",
    [
        "run quick --device cpu --html page.html",
        "report sweep.json",
        "report sweep.json --plots plots",
        "export sweep.json --html page.html",
    ],
)
def test_without_its_libraries_it_says_what_to_install_before_anything_is_measured(
    attnbench, run_file, sweep, monkeypatch, words
):
    monkeypatch.setattr("attnbench.report.libraries.find_spec", lambda name: None if name == "altair" else object())
    answer = attnbench(words)
    assert answer.code == 3
    assert answer.err.removeprefix("attnbench ") == (
        "report: module=altair is not installed; what the charts are drawn with; pip install altair\n"
    )
    assert answer.out == ""
    assert sweep.runs == []
    assert not list(Path().glob("*.html"))


@pytest.mark.parametrize("words", ["report sweep.json", "report sweep.json --plots plots"])
def test_a_library_that_is_there_and_does_not_work_is_one_line(attnbench, run_file, monkeypatch, words):
    def broken(name):
        raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.32' not found")

    monkeypatch.setattr("attnbench.report.libraries.import_module", broken)
    answer = attnbench(words)
    assert (answer.code, answer.out) == (3, "")
    assert "module=altair cannot be imported (libstdc++.so.6: version" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "report sweep.json --html -",
        "export sweep.json --html -",
        "export sweep.json --csv -",
        "export sweep.json --md -",
    ],
)
def test_stdout_gets_the_letters_of_the_file_whatever_the_terminal_has(attnbench, run_file, monkeypatch, words):
    attnbench(words[:-1] + "file")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    assert main(words.split()) == 0
    stream.flush()
    assert stream.buffer.getvalue() == Path("file").read_bytes()
    assert not stream.buffer.getvalue().isascii() or "csv" in words


def test_stdout_is_no_folder_of_pictures(attnbench, run_file):
    answer = attnbench("report sweep.json --plots -")
    assert answer.code == 2
    assert answer.err == "attnbench report: --plots=- is stdout; a folder, or the name of one to be made\n"
    assert not Path("-").exists()


def test_help_needs_no_library(attnbench, monkeypatch):
    import sys

    for name in ("altair", "vl_convert", "jinja2", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    answer = attnbench("report --help")
    assert answer.code == 0
    assert "--html PATH" in answer.out
    assert "--plots DIR" in answer.out
