"""--from: the format of a file, detected from its content; and invalid files."""

import json
import shutil

import made_up_captures as made
import pytest

from attnbench.errors import RunFileError, Unavailable, UsageError
from attnbench.profile import capture, categories, sources


def test_every_format_by_its_content(tmp_path, rules, monkeypatch, fake_tools):
    made.nsys_sqlite(tmp_path / "a.any")
    made.write_trace(tmp_path / "b.any")
    (tmp_path / "c.any").write_text(made.ncu_raw())
    (tmp_path / "d.any").write_bytes(b"NVR\0anything")
    shutil.copy(made.CAPTURES / "nsys-2025.5.2-kern.txt", tmp_path / "e.any")
    (tmp_path / "f.any").write_text((made.CAPTURES / "nsys-2025.5.2-kern.txt").read_text(), encoding="utf-16")
    monkeypatch.setitem(__import__("sys").modules, "ncu_report", None)
    tools = [one.tool for name in "abcdef" for one in sources.read(tmp_path / f"{name}.any", rules)]
    assert tools == ["nsys", "torch", "ncu", "ncu", "nsys", "nsys"]


KEPT = sorted(path for path in made.CAPTURES.iterdir() if path.suffix not in (".md", ".ncu-rep"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_every_real_capture_is_read_and_explained(rules, path):
    (found,) = sources.read(path, rules)
    assert found.kernels
    assert sum(row.category == "other" for row in found.kernels) < len(found.kernels)
    assert f"`{path.name}`" in (made.CAPTURES / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("profile_fa.sqlite", "fa"),
        ("profile_sparge_fp8.sqlite", "sparge_fp8"),
        ("x.2025.sqlite", "x.2025"),
        ("profile_.sqlite", "profile_.sqlite"),
    ],
)
def test_the_column_is_named_after_the_file(tmp_path, rules, file, name):
    assert sources.read(made.nsys_sqlite(tmp_path / file), rules)[0].name == name


def test_what_we_wrote_comes_back_and_is_sorted_anew(tmp_path, rules):
    first = sources.read(made.write_trace(tmp_path / "x.trace.json"), rules)
    kept = tmp_path / "captures.json"
    kept.write_text(capture.dumps(first))
    assert sources.read(kept, rules) == first
    mine = tmp_path / "mine.toml"
    mine.write_text("[[rule]]\ncategory = 'mine'\nmatch = 'flash'\n")
    assert sources.read(kept, categories.load(str(mine)))[0].kernels[0].category == "mine"


@pytest.mark.parametrize("name", ["x.nsys-rep", "x.qdrep"])
def test_a_report_that_only_nsys_reads(tmp_path, rules, name, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("attnbench.machine.tools.FOLDERS", ())
    path = tmp_path / name
    path.write_bytes(b"\x01\x02")
    with pytest.raises(Unavailable, match=f"nsys export --type sqlite {name}"):
        sources.read(path, rules)


def test_a_report_where_nsys_is(tmp_path, rules, fake_tools):
    path = tmp_path / "profile_fa.nsys-rep"
    path.write_bytes(b"synthetic")
    (found,) = sources.read(path, rules)
    assert (found.name, found.source, found.tool_version) == ("fa", "profile_fa.nsys-rep", "2025.5.1.121")
    assert found.idle_ms == pytest.approx(0.001)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["calls.log", "profile_fa.nsys-rep"]
    path.write_bytes(b"half")
    with pytest.raises(RunFileError, match=r"was not exported.*the report is damaged"):
        sources.read(path, rules)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"hello\nworld\n", "is none of the known formats"),
        (b"\x7fELF\x02\x01\x00\xff\xfe", "is none of the known formats"),
        (b"\xff\xfe\x00", "is none of the known formats"),
        (b'{"format": "attnbench-capture 1", "captures": [', "is cut short"),
        (b'{"format": "attnbench-capture 9", "captures": []}', "attnbench-capture 9 is not known"),
        (b'{"format": "attnbench-capture 1", "captures": [{"tool": 3}]}', "is not a str"),
        (b'{"schema": 1, "run": {}}', "has no traceEvents"),
        (b"[1, 2", "is cut short"),
    ],
)
def test_a_file_that_is_none(tmp_path, rules, content, words):
    path = tmp_path / "x.dat"
    path.write_bytes(content)
    with pytest.raises(RunFileError) as refused:
        sources.read(path, rules)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_password_in_a_text_that_is_cut_apart_is_hidden(tmp_path, rules):
    name = "nsys-2026.1.1-api-kern-nvtx.txt"
    text = (made.CAPTURES / name).read_text()
    (tmp_path / name).write_text(text.replace(":dispatch_single", "postgresql://me:secret@host/db:dispatch_single", 1))
    said = capture.dumps(sources.read(tmp_path / name, rules))
    assert "host/db" in said
    assert "secret" not in said


def test_a_file_that_is_not_there_and_a_folder(tmp_path, rules):
    for path, wrong in ((tmp_path / "nowhere", "is not there"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=f"--from={path} {wrong}; an .ncu-rep"):
            sources.read(path, rules)


def test_json_of_captures_keeps_everything(tmp_path, rules):
    (tmp_path / "x.csv").write_text(made.ncu_raw())
    first = sources.read(tmp_path / "x.csv", rules)
    assert capture.loads(capture.dumps(first), "x") == first
    assert json.loads(capture.dumps(first))["captures"][0]["kernels"][0]["counters"]["instructions_per_cycle"] is None
