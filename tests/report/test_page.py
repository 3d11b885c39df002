"""The HTML report as text: its content, escaping, and what scripts may run in it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import sys
from html.parser import HTMLParser

import pytest

from attnbench.errors import Unavailable
from attnbench.formats.layouts.base import imported_record, imported_run, imported_time
from attnbench.presentation.block import LEGEND
from attnbench.presentation.blocks import blocks, lost_of
from attnbench.record import Status
from attnbench.report import html
from attnbench.report.charts import figures
from attnbench.report.html.assemble import FOLDER, VEGA_LITE, _library, assemble
from attnbench.report.html.packing import pack
from attnbench.store.derive import derive
from attnbench.text import spelled
from made_up_run import H200, make_case, make_group, make_lost, make_record, make_run

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked=1'>",
    '" onmouseover="window.hacked=1" x=\'',
    "<!--<script>",
    "{{ 7 * 7 }}${7*7}",
    "‮evil א‏",
    "ünïcödé 注意力 \U0001f525",
    "a&lt;b",
]


class Reader(HTMLParser):
    """Elements with their attributes, and texts; scripts apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._in_script = self._in_style = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in_script, self._in_style = tag == "script", tag == "style"
        if self._in_script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._in_script = self._in_style = False

    def handle_data(self, data):
        if self._in_script:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self._in_style:
            self.texts.append(data)

    def data(self, name: str):
        return next(json.loads(text) for attributes, text in self.scripts if attributes.get("id") == name)

    @property
    def words(self) -> set[str]:
        return {text.strip("\u2007\u2008\n ") for text in self.texts}


def test_several_gpus_of_one_model_are_one_line_of_the_head():
    run = make_run(environments=(H200, dataclasses.replace(H200, gpu_uuid="GPU-2")))
    lead = assemble([derive(run)]).partition('<p class="lead">')[2].partition("</p>")[0]
    assert lead.count("NVIDIA H200") == 1


def read(*runs) -> Reader:
    return Reader(assemble([derive(run) for run in runs]))


@pytest.fixture(scope="module")
def run():
    return derive(make_run())


@pytest.fixture(scope="module")
def page(run):
    return read(run)


def test_all_that_the_terminal_shows_stands_in_the_page(run, page):
    for block in blocks(run):
        assert block.lines
        for line in block.lines:
            assert {text for column in block.columns if (text := line.cells.get(column.key))} <= page.words
        assert set(block.notes) <= page.words
        assert {" ".join(block.conditions.words())} <= {text.replace(" · ", " ") for text in page.words}
    for item in lost_of(run.records):
        assert {item.backend, item.status.value, item.reason} <= page.words


def test_what_was_run_and_where_is_told(run, page):
    text = " ".join(page.texts)
    for word in (run.suite, run.command, run.id, "2026-11-20 12:34:56 UTC", "NVIDIA H200", "580.95", "3.12.3", "700 W",
                 "132", "2.11.0+cu130", "numpy 2.5.0", "±1 %", "cuda"):  # fmt: skip
        assert word in text, word


def test_each_row_has_its_command(run, page):
    copied = {attributes["data-copy"] for _, attributes in page.elements if "data-copy" in attributes}
    assert copied == {run.command, *(record.repro for record in run.records if record.repro)}
    rows = page.data("rows-data")
    place = [column["title"] for column in rows["columns"]].index("rerun")
    assert [cells[place] for cells in rows["rows"]] == [record.repro or "" for record in _by_median(run)]


def _by_median(run):
    return sorted(run.records, key=lambda record: record.time.median_ms if record.time else float("inf"))


def test_the_rows_hold_the_figures_of_the_records(run, page):
    rows = page.data("rows-data")
    titles = [column["title"] for column in rows["columns"]]
    for cells, record in zip(rows["rows"], _by_median(run), strict=True):
        row = dict(zip(titles, cells, strict=True))
        assert (row["backend"], row["case"], row["status"]) == (record.backend, record.case_id, record.status.value)
        if record.time:
            assert float(row["median ms"]) == pytest.approx(record.time.median_ms, rel=2e-3)
            assert float(row["TFLOP/s"]) == pytest.approx(record.rate.tflops, rel=2e-3)
            assert row["reason"] == ""
        else:
            assert (row["median ms"], row["TFLOP/s"]) == ("", "")
            assert row["reason"] == record.reason.removeprefix(f"{record.backend}: ")


def test_only_what_differs_is_a_column():
    cases = [make_case(seqlen=s, seqlen_k=s, causal=c) for s in (512, 1024) for c in (False, True)]
    rows = read(make_run([record for case in cases for record in make_group(case)])).data("rows-data")
    titles = {column["title"]: column for column in rows["columns"]}
    assert titles["seqlen"] == {"title": "seqlen", "number": True, "choice": True}
    assert titles["causal"] == {"title": "causal", "number": False, "choice": True}
    assert not {"seqlen k", "batch", "status", "reason", "run", "timer"} & set(titles)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(name):
    case = make_case() | {"dtype": name}
    records = [*make_group(case), make_record(case, name, tflops=1.0, notes=(name,), repro=name),
               make_lost(case, f"{name}!", Status.SKIPPED, name)]  # fmt: skip
    run = make_run(records, suite=name, command=name, backend_files=(name,))
    found, calm = read(run), read(make_run())
    assert spelled(name) in {text.strip() for text in found.texts}
    assert [attributes for attributes, _ in found.scripts] == [attributes for attributes, _ in calm.scripts]
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in calm.elements} | {"ul", "li"}
    assert not [attributes for _, attributes in found.elements if any(key.startswith("on") for key in attributes)]
    rows = found.data("rows-data")
    assert spelled(name) in {cell for cells in rows["rows"] for cell in cells}
    data = [text for attributes, text in found.scripts if attributes.get("type") == "application/json"]
    assert len(data) == 3
    assert "<" not in "".join(data)


def test_half_a_surrogate_pair_does_not_stop_the_report():
    text = html.render(derive(make_run(suite="odd \ud800 name"))).decode()
    assert r"<title>odd \ud800 name" in text


def test_only_our_two_scripts_may_run_and_nothing_is_asked_for(page):
    policy = next(
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    code = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in code]
    assert len(code) == 2
    assert sorted(rules["script-src"]) == sorted(hashes)
    assert rules["default-src"] == ["'none'"]
    assert rules["img-src"] == ["data:"]
    for tag, attributes in page.elements:
        for key in ("src", "href", "action", "poster", "srcset"):
            assert (attributes.get(key) or "#").startswith(("#", "data:")), (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base", "form")


def test_a_run_of_check_shows_its_errors():
    records = [dataclasses.replace(record, time=None, speedup=None, rate=None) for record in make_group(make_case())]
    page = read(make_run(records))
    assert {"4.1e-04", "1.6e-03", "out", "ok"} <= page.words
    rows = page.data("rows-data")
    assert [cells[0] for cells in rows["rows"]] == [record.backend for record in records]


def test_a_wrong_output_shows_how_wrong(run):
    error = dataclasses.replace(run.records[0].errors["out"], max_abs=0.31, ok=False)
    wrong = dataclasses.replace(make_record(make_case(), "mine", tflops=1.0), status=Status.INCORRECT, time=None,
                                rate=None, reason="out: far off", errors={"out": error})  # fmt: skip
    page = read(make_run([*make_group(make_case()), wrong]))
    assert {"3.1e-01", "wrong", "out: far off"} <= page.words


def test_processes_of_a_case_are_one_row():
    case, records = make_case(), []
    for replicate in range(3):
        group = make_group(case)
        suffix = f"#{replicate}" if replicate else ""
        records += [dataclasses.replace(record, replicate=replicate, group=record.group + suffix) for record in group]
    page = read(make_run(records))
    assert len(page.data("rows-data")["rows"]) == 5
    assert "3 processes" in " ".join(page.texts)


def test_several_runs_stand_in_one_page(run):
    other = dataclasses.replace(run, id="00000001", suite="other")
    page = read(run, other)
    rows = page.data("rows-data")
    assert rows["columns"][0]["title"] == "run"
    assert {cells[0] for cells in rows["rows"]} == {"compare", "other"}
    assert [attributes["id"] for tag, attributes in page.elements if tag == "section"][:3] == ["compared-B", "r0", "r1"]
    anchors = [attributes["id"] for tag, attributes in page.elements if attributes.get("class") == "case"]
    assert set(rows["cases"]) == set(anchors)
    twice = read(run, dataclasses.replace(run, id="00000001"))
    assert {cells[0] for cells in twice.data("rows-data")["rows"]} == {"compare 3f9a01bc", "compare 00000001"}


def test_a_run_without_records_says_so():
    page = read(make_run([]))
    assert "0 cases, 0 backends, 0 rows" in " ".join(page.texts)


def test_ids_are_there_once_and_links_lead_somewhere(page):
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for tag, attributes in page.elements if tag == "a"]
    assert targets
    assert set(targets) <= set(ids)
    for _, attributes in page.elements:
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids


def test_a_case_of_the_matrix_is_a_link_to_its_tables():
    lengths = (512, 1024)
    page = read(
        make_run([one for s in lengths for one in make_group(make_case(seqlen=s, seqlen_k=s), {"sdpa": 500.0})])
    )
    [matrix] = [place for place, (_, attributes) in enumerate(page.elements) if attributes.get("class") == "matrix"]
    within = itertools.takewhile(lambda element: element[0] != "table", page.elements[matrix + 1 :])
    assert [attributes["href"] for tag, attributes in within if tag == "a"] == ["#r0c0", "#r0c1"]


def test_charts_are_put_together_again(run):
    drawn = figures([run])
    packed = json.loads(json.dumps(pack(drawn)))
    assert drawn
    for figure, (template, height, tables) in zip(drawn, packed["figures"], strict=True):
        spec = dict(packed["templates"][template])
        assert height == spec["usermeta"]["around"] + figure.spec["height"]
        spec["height"] = figure.spec["height"]
        spec["datasets"] = {}
        for name, place in tables.items():
            names, *rows = packed["tables"][place]
            spec["datasets"][name] = [dict(zip(names, row, strict=True)) for row in rows] if names else rows
        assert spec == json.loads(json.dumps(figure.spec))


def test_cases_share_their_charts_forms():
    cases = [make_case(seqlen=s, seqlen_k=s) for s in (512, 1024, 2048, 4096, 8192, 16384)]
    drawn = figures([derive(make_run([record for case in cases for record in make_group(case)]))])
    assert len(drawn) >= 24
    assert len(pack(drawn)["templates"]) <= 12


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setattr("attnbench.report.libraries.find_spec", lambda name: None if name == "altair" else object())
    line = r"report: module=altair is not installed; .*; pip install altair"
    with pytest.raises(Unavailable, match=line):
        html.ready()


def test_a_page_needs_no_vl_convert_and_has_the_script_that_it_makes(monkeypatch):
    """`vega.js` is written by: open("vega.js", "w").write(vl_convert.javascript_bundle(…)), as below."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
    assert (FOLDER / "vega.js").read_text("utf-8") == bundle
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    _library.cache_clear()
    assert "window.vegaEmbed" in html.page([make_run(make_group(make_case()))])


def test_a_table_stands_above_what_was_lost():
    records = [dataclasses.replace(record, time=None, speedup=None, rate=None) for record in make_group(make_case())]
    page = read(make_run([make_lost(make_case(), "eager", Status.OOM, "needs 48.0 GiB"), *records]))
    texts = [text.strip() for text in page.texts]
    assert texts.index("max abs") < texts.index("needs 48.0 GiB")
    assert LEGEND not in texts  # nothing in these tables needs it
    assert LEGEND in [text.strip() for text in read(make_run()).texts]


def test_large_counts_are_grouped():
    cases = [make_case(batch=batch) for batch in range(1, 202)]
    run = make_run([record for case in cases for record in make_group(case, samples=2)])
    assert "201 cases, 5 backends, 1,005 rows: 1,005 passed" in " ".join(read(run).texts)


def test_an_import_of_means_has_them_in_its_page():
    records = [
        imported_record("seed-003", {"seqlen": 512}, name, imported_time(mean_ms=ms))
        for name, ms in (("slow", 3.25), ("quick", 1.5))
    ]
    found = read(imported_run("seed-003", "plots", records))
    assert {"mean ms", "1.50", "3.25"} <= found.words
    assert "mean ms" in {column["title"] for column in found.data("rows-data")["columns"]}
