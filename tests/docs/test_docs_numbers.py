"""Every measured number in the docs comes from a committed file."""

from __future__ import annotations

import copy
import json
import math
import re

import pytest
import tables
from documents import GUIDES, ROOT, name, prose

from attnbench.loadtest.run import IN_TIME
from attnbench.measure.sampling import DISAGREE, OWN
from attnbench.record import Status
from attnbench.stats.race_data import CLOSE, Rules
from attnbench.stats.ratio import RESOLUTION, SAME_WITHIN
from attnbench.store.runfile import write
from attnbench.verdict import diff, placement, together
from attnbench.verdict.contrast import MACHINE
from attnbench.worker.supervisor import KEPT
from made_up_run import make_case, make_group, make_lost, make_run

NUMBER = re.compile(
    r"(?<![\w.])\d[\d.,]*(?:-\d[\d.]*)?\s?(?:[µumn]?s|%|per cent|TFLOP/s|[GT]B/s|x|×|[KMG]i?B|[MG]Hz|W|"
    r"°C|min|h)(?![\w/])"
)
SEED = "a figure that seed 004 gives, quoted"
CONFIDENCE = "the confidence of every interval, stats/summary.py"
EXPLAINED = {
    "docs/commands.md": {"95 %": CONFIDENCE},
    "docs/measuring.md": {
        "95 %": CONFIDENCE,
        f"{100 * DISAGREE:g} %": "measure.sampling.DISAGREE",
        f"{100 * OWN:g} %": "measure.sampling.OWN",
        f"{100 * SAME_WITHIN:g} %": "stats.ratio.SAME_WITHIN",
        f"{100 * RESOLUTION:g} %": "stats.ratio.RESOLUTION",
    },
    "docs/comparing.md": {
        "95 %": CONFIDENCE,
        f"{100 * SAME_WITHIN:g} %": "stats.ratio.SAME_WITHIN, verdict.contrast.PROCESS",
        f"{100 * diff.SAME_WITHIN:g} %": "verdict.diff.SAME_WITHIN",
        f"{100 * MACHINE:g} %": "verdict.contrast.MACHINE, verdict.together.LEAST, verdict.levels.IMPORTED_ERROR",
        f"{100 * placement.LEAST:g} %": "verdict.placement.LEAST",
        f"{100 * math.expm1(together.LEAST_OF_ONE):g} %": "verdict.together.LEAST_OF_ONE",
    },
    "docs/correctness.md": {f"{KEPT >> 10} KiB": "worker.supervisor.KEPT"},
    "docs/tuning.md": {
        "95 %": CONFIDENCE,
        f"{100 * CLOSE:g} %": "stats.race_data.CLOSE",
        f"{100 * Rules().risk:g} %": "stats.race_data.Rules",
        f"{100 * Rules().share:g} %": "stats.race_data.Rules",
    },
    "docs/migrating.md": dict.fromkeys(
        ("0.15x", "312 TFLOP/s", "1 ms", "2 ms", "8 ms", "30 ms", "90 %", "80 %", "70 %", "3x", "2x"), SEED
    ),
    "docs/serving.md": {f"{100 * IN_TIME:g} %": "load.run.IN_TIME"},
    "docs/run-file.md": {"0.1 ns": "digits kept of a sample, store/runfile.py"},
}
"""Numbers with a unit that are not measured: constants of the program, and figures quoted."""


def loose(text: str, explained: dict[str, str]) -> list[str]:
    return [number for number in NUMBER.findall(prose(text)) if number not in explained]


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_no_number_stands_loose(path):
    assert loose(path.read_text("utf-8"), EXPLAINED.get(name(path), {})) == []


@pytest.mark.parametrize("path", EXPLAINED)
def test_no_explanation_outlives_its_number(path):
    found = NUMBER.findall(prose((ROOT / path).read_text("utf-8")))
    assert set(EXPLAINED[path]) <= set(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("costs 3-4 µs a call", ["3-4 µs"]),
        ("took 12.5ms", ["12.5ms"]),
        ("1.39x faster by 79 %", ["1.39x", "79 %"]),
        ("349 TFLOP/s, 4.8 TB/s", ["349 TFLOP/s", "4.8 TB/s"]),
        ("at 1980 MHz, 700 W", ["1980 MHz", "700 W"]),
        ("`busy 3 ms`", ["3 ms"]),
        ("12 repeats of 8 kernels in 2.5 times", []),
        ("```text\n3 ms\n```\n", []),
        ("fp16 b1-s128 2x2", []),
        ("<!-- begin: a -->\n3 ms\n<!-- end -->", []),
    ],
)
def test_what_counts_as_a_number(text, found):
    assert loose(text, {}) == found


# ── the tables ─────────────────────────────────────────────────────────────────────────────────────


def test_every_table_of_the_docs_is_what_its_file_says(capsys):
    assert tables.main(["--check"]) == 0, f"python benchmarks/tables.py --write\n{capsys.readouterr().out}"


def test_every_table_stands_somewhere_and_every_mark_is_closed():
    texts = [path.read_text("utf-8") for path in tables.documents()]
    assert {match["name"] for text in texts for match in tables.BLOCK.finditer(text)} == set(tables.TABLES)
    for text in texts:
        assert text.count("<!-- begin: ") == text.count("<!-- end -->") == len(tables.BLOCK.findall(text))


def aa_row(ours: float, ratio: float = 1.0) -> dict:
    return {
        "do_bench_ms": 1.4 * ours,
        "do_bench_s": 0.15,
        "median_ms": ours,
        "samples": 60,
        "sampling_s": 0.2,
        "total_s": 0.3,
        "device_s_per_backend": 0.05,
        "stopped_by": "rel-ci",
        "sm_mhz": [1830.0, 1980.0],
        "watts": 300.0,
        "host_ms": 0.02,
        "notes": [],
        "kernels": ["a"],
        "kernel_ms": [ours],
        "ratio": ratio,
        "low": ratio - 1e-4,
        "high": ratio + 1e-4,
    }


PRECISION = {
    "environment": {"gpu": "NVIDIA H200", "driver": "580.95", "torch": "2.11.0+cu130", "triton": "3.6.0"},
    "settings": {"repeats": 2},
    "aa": [
        {"kernel": [1, 8, 256, 64, "flash"], "rows": [aa_row(0.00845, 1.001), aa_row(0.00847, 0.9995)]},
        {"kernel": [4, 16, 4096, 128, "cudnn"], "rows": [aa_row(0.85, 1.0002), aa_row(0.91, 0.9998)]},
    ],
    "sustained": [
        {
            "kernel": [4, 16, 4096, 128, "flash"],
            "rows": [
                {
                    "median_ms": 1.6,
                    "samples": 60,
                    "sm_mhz": [1600.0, 1700.0],
                    "watts": 690.4,
                    "ratio": 1.0003,
                    "low": 1.0,
                    "high": 1.0006,
                }
            ],
        }
    ],
    "ab": [{"pair": "matmul", "true": 1 / 1.01, "rows": [{"ratio": 0.9901, "low": 0.99, "high": 0.9902}] * 2}],
}
STAMPS = {
    "environment": PRECISION["environment"],
    "kernels": {
        name: {
            tool: {"ms": [truth + more, truth + more + 1e-4, truth + more - 1e-4], "truth_ms": [truth] * 3}
            for tool, more in {"cupti": offset, "ncu, caches kept": 0.0015}.items()
        }
        for name, truth, offset in (
            ("spin 0 on 132", 2e-4, 7e-4),
            ("copy 8 on 132", 5e-3, 9e-4),
            ("matmul 2048 on 256", 0.05, 2e-3),
        )
    },
}
OVERHEAD = {
    "groups": 200,
    "records": 800,
    "wall_s": 123.4,
    "share": 0.617,
    "seconds_per_group": 0.58,
    "relative_half_width": [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009],
    "marks": [[5.0, 0.9], [6.4, 1.9], [7.1, 2.1], [8.7, 3.1]],
    "stages_s": {"sample": 76.1, "check": 30.5, "memory": 0.2},
}


@pytest.fixture
def results(tmp_path):
    """Made-up results of every table."""
    (tmp_path / "precision-h200.json").write_text(json.dumps(PRECISION))
    (tmp_path / "overhead-h200.json").write_text(json.dumps(OVERHEAD))
    (tmp_path / "stamps-h200.json").write_text(json.dumps(STAMPS))
    cases = [make_case(), make_case(causal=True, seqlen=4096, seqlen_k=4096)]
    records = [record for case in cases for record in make_group(case)]
    lost = make_lost(cases[0], "eager", Status.OOM, "needs more")
    write(make_run([*records, lost]), tmp_path / "quick-h200.json")
    write(make_run(records), tmp_path / "quick-cpu.json")
    return tmp_path


def cells(table: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_precision_table_is_worked_out_from_its_file(results):
    rows = cells(tables.render("precision-h200", str, results))[2:]
    assert rows[0] == [
        "flash 1, 8, 256, 64",
        "11.84 µs",
        "0.24 %",
        "8.46 µs",
        "0.24 %",
        "8.46 µs",
        "1.00100",
        "1830-1980 MHz",
        "0.2 s",
    ]
    assert rows[1] == [
        "cudnn 4, 16, 4096, 128",
        "1.232 ms",
        "6.8 %",
        "0.88 ms",
        "6.8 %",
        "0.88 ms",
        "1.00020",
        "1830-1980 MHz",
        "0.2 s",
    ]
    assert "Measured on NVIDIA H200, driver 580.95" in tables.render("precision-h200", str, results)


def test_the_targets_are_judged(results):
    rows = {row[0]: row[2:] for row in cells(tables.render("targets-h200", str, results))[2:]}
    assert rows == {
        "spread of the median, under 30 µs": ["1 of 1, worst 0.24 %", "yes"],
        "CUPTI beyond a kernel's own stamps, less an empty kernel's": ["3 of 3, worst 1.30 µs", "yes"],
        "A/A ratio, over 0.5 ms": ["2 of 2, worst 1.00020", "yes"],
        "A/A ratio, at the power limit": ["1 of 1, worst 1.00030", "yes"],
        "A/A ratio, under 30 µs": ["2 of 2, worst 1.00100", "yes"],
        "1 % found with the right sign": ["2 of 2, worst 0.99010", "yes"],
        "device time a backend, against do_bench's": ["2 of 2, worst 0.05 s / 0.15 s", "yes"],
        "wall time spent sampling": ["1 of 1, worst 62 %", "yes"],
    }


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (("aa", 0, "rows", 0, "median_ms"), 0.0088, "spread of the median, under 30 µs"),
        (("aa", 1, "rows", 0, "ratio"), 1.0011, "A/A ratio, over 0.5 ms"),
        (("sustained", 0, "rows", 0, "ratio"), 0.9985, "A/A ratio, at the power limit"),
        (("aa", 0, "rows", 1, "ratio"), 0.9955, "A/A ratio, under 30 µs"),
        (("ab", 0, "rows", 0, "high"), 1.0001, "1 % found with the right sign"),
        (("aa", 1, "rows", 0, "device_s_per_backend"), 0.9, "device time a backend, against do_bench's"),
    ],
)
def test_a_target_that_is_missed_is_said(results, place, value, what):
    data = copy.deepcopy(PRECISION)
    data["ab"][0]["rows"] = [dict(row) for row in data["ab"][0]["rows"]]
    *outer, last = place
    spot = data
    for key in outer:
        spot = spot[key]
    spot[last] = value
    (results / "precision-h200.json").write_text(json.dumps(data))
    rows = {row[0]: row[2:] for row in cells(tables.render("targets-h200", str, results))[2:]}
    assert rows[what][1] == "no"
    assert [one for one, (_, met) in rows.items() if met == "no"] == [what]


def test_a_duration_that_is_not_the_stamps_is_said(results):
    data = copy.deepcopy(STAMPS)
    data["kernels"]["copy 8 on 132"]["cupti"]["ms"] = [0.0061] * 3  # 0.4 µs beyond, of 5 µs
    (results / "stamps-h200.json").write_text(json.dumps(data))
    rows = {row[0]: row[2:] for row in cells(tables.render("targets-h200", str, results))[2:]}
    assert [what for what, (_, met) in rows.items() if met == "no"] == [
        "CUPTI beyond a kernel's own stamps, less an empty kernel's"
    ]


def test_the_other_tables(results):
    assert cells(tables.render("stamps-h200", str, results))[2:] == [
        ["spin 0", "132", "0.2 µs", "+0.70 µs", "+1.50 µs"],
        ["copy 8", "132", "5 µs", "+0.90 µs", "+1.50 µs"],
        ["matmul 2048", "256", "50 µs", "+2.00 µs", "+1.50 µs"],
    ]
    assert cells(tables.render("known-answers-h200", str, results))[2] == [
        "matmul",
        "0.99010",
        "0.99010-0.99010",
        "2 of 2",
        "2 of 2",
    ]
    assert cells(tables.render("power-limit-h200", str, results))[2] == [
        "flash 4, 16, 4096, 128",
        "1.6 ms",
        "0 %",
        "1.00030",
        "1600-1700 MHz",
        "690 W",
    ]
    whole, stages = tables.render("overhead-h200", str, results).split("\n\n")
    assert cells(whole)[2] == [
        "200 × 4",
        "123 s",
        "62 %",
        "0.58 s",
        "0.40-0.60 s, median 0.50 s",
        "4.1 s",
        "1",
        "0.5 %",
    ]
    assert cells(stages)[2:] == [["`sample`", "76.1 s", "62 %"], ["`check`", "30.5 s", "25 %"]]
    quick = tables.render("quick-h200", str, results)
    head, _, first, second = cells(quick)
    assert head[:4] == ["batch", "length", "head dim", "causal"]
    assert (first[1:4], second[1:4]) == (["16384", "128", "no"], ["4096", "128", "yes"])
    assert f"**{max(int(cell.strip('*')) for cell in first[4:])}**" in first
    assert "Not in the table: `eager` (oom)." in quick
    assert tables.render("quick-cpu", str, results).startswith("```text\n")


def test_what_was_not_measured_says_so_in_both_languages(tmp_path):
    missing = {one: tables.render(one, str, tmp_path) for one, table in tables.TABLES.items() if table.files}
    assert set(missing.values()) == {"Not measured yet."}
    (tmp_path / "overhead-h200.json").write_text(json.dumps(OVERHEAD))
    rows = cells(tables.render("targets-h200", str, tmp_path))[2:]
    assert [row[2:] for row in rows[:-1]] == [["not measured", ""]] * 7
    chinese = tables.language(ROOT / "README.zh-CN.md")
    assert tables.render("precision-h200", chinese, tmp_path) == "尚未测量。"


def test_every_word_of_a_table_has_its_chinese(results):
    for one in tables.TABLES:
        tables.render(one, tables.CHINESE.__getitem__, results)


def test_a_table_by_a_name_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="name=speed is not known; one of backends, quick-cpu"):
        tables.renewed("<!-- begin: speed -->\n<!-- end -->", str)


def test_only_what_is_between_the_marks_is_renewed(results):
    text = "before\n<!-- begin: overhead-h200 -->\nold\n<!-- end -->\nafter 3 ms\n"
    new = tables.renewed(text, str, results)
    assert new.startswith("before\n<!-- begin: overhead-h200 -->\n| cases")
    assert new.endswith(" |\n<!-- end -->\nafter 3 ms\n")
    assert tables.renewed(new, str, results) == new


def test_the_made_up_files_have_the_fields_of_the_benchmarks():
    source = (ROOT / "benchmarks/precision.py").read_text("utf-8")
    fields = {
        *PRECISION,
        *PRECISION["aa"][0],
        *PRECISION["aa"][0]["rows"][0],
        *PRECISION["ab"][0],
        *PRECISION["sustained"][0]["rows"][0],
        *OVERHEAD,
    }
    source += (ROOT / "benchmarks/overhead.py").read_text("utf-8")
    assert [field for field in fields if f'"{field}"' not in source] == []
