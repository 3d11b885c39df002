"""Tables of captures: percentages, idle, seed 003's exact rows, counters, the roofline, CSV."""

from __future__ import annotations

import csv
import dataclasses
import io

import made_up_captures as made
import pytest

from attnbench.machine.peaks import peak
from attnbench.profile import ncu_csv, nsys_sqlite, nsys_text, seed_003, tables
from attnbench.profile.attach import by_category
from attnbench.profile.capture import Capture, KernelRow, RangeRow
from attnbench.profile.categories import by_range
from attnbench.profile.counters import of_record
from attnbench.profile.roofline import points
from attnbench.profile.table import Table, text
from attnbench.record import Work


@pytest.fixture
def nsys(tmp_path, rules):
    return nsys_sqlite.parse(made.nsys_sqlite(tmp_path / "x.sqlite"), name="fa", rules=rules)


@pytest.fixture
def ncu(rules):
    return ncu_csv.parse(made.ncu_raw(), name="fa", source="x", rules=rules, advice=made.ncu_details())


def cell(table, row, head):
    return next(one for one in table.rows if row in one)[table.heads.index(head)]


def test_categories_are_of_the_window_and_idle_is_the_rest(nsys):
    table = tables.categories([nsys])
    assert cell(table, "attention", "fa ms") == pytest.approx(0.006)
    assert cell(table, "attention", "%") == pytest.approx(50.0)
    assert cell(table, "copy", "fa ms") == pytest.approx(0.002)
    assert cell(table, "elementwise add", "fa ms") == pytest.approx(0.002)
    assert cell(table, "memory copy", "fa ms") == pytest.approx(0.0013)
    assert cell(table, "idle", "fa ms") == pytest.approx(0.001)
    assert "matmul" not in [row[0] for row in table.rows]
    assert [row[0] for row in table.rows][-1] == "idle"


def test_without_a_window_the_shares_are_of_the_kernels_and_idle_is_missing(rules):
    found = nsys_text.parse(
        (made.CAPTURES / "nsys-2026.1.1-api-kern-nvtx.txt").read_text(), name="x", source="x", rules=rules
    )
    table = tables.categories([found])
    assert "idle" not in [row[0] for row in table.rows]
    assert sum(row[2] for row in table.rows) == pytest.approx(100.0)
    assert "nor what was idle" in table.notes[0]


def test_copies_are_in_the_whole_where_there_is_no_window(rules, nsys):
    found = nsys_text.parse(
        (made.CAPTURES / "nsys-2023.4.4-boxed-kern-mem.txt").read_text(), name="x", source="x", rules=rules
    )
    table = tables.categories([found])
    assert sum(row[2] for row in table.rows) == pytest.approx(100.0)  # copies took 34 times as long as the kernels
    assert cell(table, "memory copy", "%") == pytest.approx(97.13, abs=0.01)
    both = tables.categories([nsys, found])
    assert [note.partition(" of ")[0] for note in both.notes[:2]] == ["per cent", "x: per cent"]


def test_what_is_missing_is_said_whatever_table_is_chosen(rules):
    found = nsys_text.parse((made.CAPTURES / "nsys-2025.5.2-kern.txt").read_text(), name="x", source="x", rules=rules)
    for name in ("all", "kernels", "categories", "seed-003"):
        assert any("rows are missing" in note for table in tables.chosen(name, [found]) for note in table.notes), name
    killed = Capture(
        tool="ncu",
        name="a",
        source="x",
        notes=("ncu: was killed by SIGKILL; its end may be missing",),
        kernels=(dataclasses.replace(kernel("k", "other", 1, 1.0), counters={"cycles": 1.0}),),
    )
    for name in ("all", "counters"):
        assert "was killed" in tables.chosen(name, [killed])[0].notes[0]
        two = tables.chosen(name, [killed, dataclasses.replace(killed, name="b")])[0]
        assert two.notes[1].startswith("b: ncu: was killed")


SEED_003 = (
    "Attn (%)",
    "Attn (s)",
    "direct_copy_kernel_cuda (times)",
    "direct_copy_kernel_cuda (ms)",
    "CUDAFunctor_add (times)",
    "CUDAFunctor_add (ms)",
    "Total (s)",
)


def kernel(name, category, calls, total_ms):
    return KernelRow(name=name, short=name, category=category, calls=calls, total_ms=total_ms)


def test_the_table_of_seed_003_is_the_seeds():
    """The kernels' sums that the seed's own first column follows from give its cells back."""
    others = 45_400 / 0.537 - 45_400 - 373.4 - 650.5
    found = Capture(
        tool="nsys",
        name="FA2 (baseline)",
        source="profile_fa.sqlite",
        window_ms=85_400.0,
        busy_ms=84_000.0,
        kernels=(
            kernel("flash_fwd_kernel", "attention", 3000, 45_400.0),
            kernel(made.COPY, "copy", 10_000, 300.0),
            kernel(made.COPY + "2", "copy", 835, 73.4),
            kernel(made.ADD, "elementwise add", 6422, 650.5),
            kernel("gemm", "matmul", 9, others),
        ),
    )
    table = seed_003.table([found])
    assert table.heads == ("Metrics", "FA2 (baseline)")
    assert tuple(row[0] for row in table.rows) == SEED_003
    assert tuple(row[1] for row in table.rows) == ("53.7%", "45.4s", "10,835", "373.4ms", "6,422", "650.5ms", "85.4s")


def test_the_total_of_several_backends_is_that_of_all_their_ranges():
    ranges = tuple(RangeRow(name=f"{name}/b2-s64-h1-d16-fp16-fwd", calls=1, gpu_ms=3_000.0) for name in "ab")
    found = Capture(
        tool="torch",
        name="x",
        source="x",
        window_ms=9_000.0,
        busy_ms=6_000.0,
        kernels=(kernel("flash_fwd", "attention", 2, 5_000.0),),
        ranges=(*ranges, RangeRow(name="inner", calls=9, gpu_ms=1.0)),
    )
    assert dict(seed_003.table([found]).rows)["Total (s)"] == "6s"


def test_seed_003_of_a_launch_keeps_its_digits_and_its_total_is_the_range(nsys):
    values = dict(seed_003.table([nsys]).rows)
    assert values["Attn (%)"] == "60.0%"
    assert values["Attn (s)"] == "0.000006s"
    assert values["direct_copy_kernel_cuda (times)"] == "2"
    assert values["CUDAFunctor_add (ms)"] == "0.002ms"
    assert values["Total (s)"] == "0.000008s"


def test_seed_003_where_a_kernel_never_ran_and_where_nothing_is_known():
    none = Capture(tool="nsys", name="x", source="x")
    assert dict(seed_003.table([none]).rows)["Attn (s)"] is None
    assert dict(seed_003.table([none]).rows)["Total (s)"] is None
    only = Capture(tool="nsys", name="x", source="x", kernels=(kernel("gemm", "matmul", 1, 2.0),))
    values = dict(seed_003.table([only]).rows)
    assert (values["Attn (%)"], values["CUDAFunctor_add (times)"]) == ("0.0%", "0")
    assert values["CUDAFunctor_add (ms)"] == "0.0ms"
    assert values["Total (s)"] == "0.002s"


def test_a_large_sum_is_written_as_the_seed_does():
    found = Capture(tool="nsys", name="x", source="x", kernels=(kernel(made.ADD, "elementwise add", 7922, 1045.2),))
    assert dict(seed_003.table([found]).rows)["CUDAFunctor_add (ms)"] == "1,045ms"


def test_counters(ncu):
    table = tables.counters([ncu])
    assert cell(table, "flash_fwd_kernel", "backend") == "sdpa-flash"
    assert cell(table, "flash_fwd_kernel", "cycles") == 188412
    assert cell(table, "flash_fwd_kernel", "regs") == 168
    assert cell(table, "flash_fwd_kernel", "warps wait for") == "math_pipe_throttle 2.40"
    assert cell(table, "flash_fwd_kernel", "tensor %") == 71.02


def test_the_roofline_is_of_one_launch(ncu):
    work = {made.CASE: Work(flops=2 * 10**9, bytes=1)}
    (point,) = points([ncu], work, {made.CASE: peak("NVIDIA H200", "fp16")}, launches=2)
    assert (point.backend, point.ms, point.dram_mb) == ("sdpa-flash", pytest.approx(0.105), pytest.approx(17.0))
    assert point.tflops == pytest.approx(2e9 / 0.105e-3 / 1e12)
    assert point.gbps == pytest.approx(17e6 / 0.105e-3 / 1e9)
    assert point.intensity == pytest.approx(2e9 / 17e6)
    assert point.percent_of_memory == pytest.approx(100 * point.gbps / 4800, rel=0.01)
    assert point.percent_of_compute == pytest.approx(100 * point.tflops / 989, rel=0.01)
    assert points([ncu], {}, {}, launches=2) == []


def test_the_roofline_leaves_blank_what_was_not_measured(rules):
    found = ncu_csv.parse(made.ncu_raw({"launch__registers_per_thread": ("", "8")}), name="x", source="x", rules=rules)
    (point,) = points([found], {made.CASE: Work(flops=10, bytes=1)}, {}, launches=2)
    assert (point.ms, point.tflops, point.gbps, point.intensity, point.percent_of_compute) == (None,) * 5


def test_traffic_from_the_rate_where_the_set_has_no_bytes(rules):
    metrics = {"gpu__time_duration.sum": ("ms", "2"), "dram__bytes.sum.per_second": ("Gbyte/s", "3")}
    found = ncu_csv.parse(
        made.ncu_raw(metrics, launches=[(made.FLASH, made.RANGE, {})]), name="x", source="x", rules=rules
    )
    (point,) = points([found], {made.CASE: Work(flops=10, bytes=1)}, {}, launches=1)
    assert point.dram_mb == pytest.approx(6.0)


def test_counters_of_a_record_are_those_of_the_longest_kernel_and_sums_of_all(ncu):
    found = of_record(ncu.kernels)
    assert found["registers"] == 168
    assert found["duration_ms"] == pytest.approx(2 * 0.105 + 0.0032)
    assert found["dram_bytes"] == pytest.approx(3 * 17e6)
    assert of_record([]) == {}
    twice = [dataclasses.replace(kernel("k", "other", 2, 2.0), counters={"duration_ms": 1.0, "registers": 4.0})]
    assert of_record(twice) == {"duration_ms": 1.0, "registers": 4.0}
    assert of_record(twice, launches=1)["duration_ms"] == 2.0  # a backend that launches one kernel two times


def test_csv_has_every_kernel_and_every_counter(ncu, nsys):
    rows = list(csv.DictReader(io.StringIO(tables.to_csv([ncu, nsys]))))
    assert len(rows) == len(ncu.kernels) + len(nsys.kernels)
    first = [rows[0][name] for name in ("backend", "registers", "stall_long_scoreboard")]
    assert first == ["sdpa-flash", "168.0", "1.25"]
    assert rows[0]["instructions_per_cycle"] == ""
    assert rows[0]["name"] == made.FLASH
    assert rows[2]["registers"] == ""


def test_which_tables(ncu, nsys):
    titles = [table.title for table in tables.chosen("all", [ncu, nsys])]
    assert titles == [
        "counters (ncu)",
        "advice of ncu",
        "kernels of fa (nsys)",
        "time by category",
        "copies of fa",
        "ranges of fa",
        "CUDA API of fa: time of the CPU, not of the GPU",
    ]
    assert [table.title for table in tables.chosen("seed-003", [nsys])] == ["time of kernels"]
    assert tables.chosen("counters", [nsys]) == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        ("x", "x"),
        (811520, "811,520"),
        (62589.83, "62,590"),
        (188.412, "188.4"),
        (1.402, "1.402"),
        (0.00867263, "0.008673"),
        (0.0, "0"),
        (99.96, "99.96"),
        (1e-9, "1e-09"),
        (-3.5, "-3.500"),
    ],
)
def test_a_cell(value, shown):
    assert text(value) == shown


def test_markdown_and_plain_text():
    table = Table(title="t", heads=("name", "ms"), rows=(("a|b<c>", 1.5), ("d", None)), notes=("so",))
    assert table.markdown() == ("| name | ms |\n| --- | ---: |\n| a\\|b&lt;c> | 1.500 |\n| d |  |\n\nso\n")
    assert table.plain() == "t\nname       ms\na|b<c>  1.500\nd\nso\n"


def test_the_seeds_columns_are_read_beside_the_first():
    def column(name, attention, copies, total, preparation=None):
        rows = (kernel("flash_fwd", "attention", 3000, attention), kernel(made.COPY, "copy", 10, copies))
        rows += () if preparation is None else (kernel("QuantInt8Kernel", "attention preparation", 9, preparation),)
        return Capture(tool="nsys", name=name, source=name, window_ms=total, busy_ms=total, kernels=rows)

    found = seed_003.table(
        [column("fa", 45_400.0, 373.4, 85_400.0), column("sage2", 19_500.0, 373.8, 63_200.0, preparation=900.0)]
    )
    assert found.heads == ("Metrics", "FA2 (baseline)", "Sage2")
    assert found.notes == (
        "Sage2 beside FA2: attention -25.9 s, its preparation +0.9 s, these copies and additions +0.4 ms, "
        "total -22.2 s (1.35x)",
    )


@pytest.mark.parametrize(
    ("names", "heads"),
    [
        (
            ("video_sdpa-flash", "video_sage2", "video_sparge", "video_sparge-fp8"),
            ("FA2 (baseline)", "Sage2", "Sparge (fp16)", "Sparge (fp8)"),
        ),
        (("profile_fa", "profile_sparge_fp8", "video_eager"), ("FA2 (baseline)", "Sparge (fp8)", "video_eager")),
        (("video_sdpa", "video_sdpa-flash"), ("video_sdpa", "FA2")),
        (("fa", "video_sdpa-flash"), ("fa", "video_sdpa-flash")),
    ],
)
def test_columns_have_the_seeds_names(names, heads):
    found = [Capture(tool="nsys", name=name, source=name) for name in names]
    assert seed_003.table(found).heads == ("Metrics", *heads)


def test_ranges_say_what_names_do_not():
    def row(name, category, ranges, backend="b"):
        one = kernel(name, category, 1, 1.0)
        return dataclasses.replace(one, backend=backend, range=ranges[-1], within=tuple(ranges[:-1]))

    rows = [
        row("flash_fwd", "attention", ["b/c", "attention"]),
        row("radixSort", "reduction", ["b/c", "attention"]),
        row("list_blocks", "attention preparation", ["b/c", "attention"]),
        row("flash_helper", "attention", ["b/c", "attention", "preparation"]),
        row("direct_copy", "copy", ["b/c", "copies"]),
        row("gemm", "matmul", ["b/c"]),
        row("gemm", "matmul", ["e/c", "attention"], "e"),
        row("softmax", "reduction", ["e/c", "attention"], "e"),
        row("direct_copy", "copy", ["e/c", "attention"], "e"),
    ]
    prepares = "attention preparation"
    assert [one.category for one in by_range(rows)] == [
        "attention",
        prepares,
        prepares,
        prepares,
        prepares,
        "matmul",
        "attention",
        "attention",
        prepares,
    ]


def test_kernels_that_no_rule_knows_are_said_from_a_hundredth_on():
    def capture(other):
        rows = (kernel("flash_fwd", "attention", 1, 100.0 - other), kernel("what", "other", 1, other))
        return Capture(tool="torch", name="x", source="x", window_ms=100.0, busy_ms=100.0, kernels=rows)

    assert not [note for note in tables.categories([capture(0.9)]).notes if "category" in note]
    (note,) = [note for note in tables.categories([capture(3.0)]).notes if "category" in note]
    assert note == "x: 3.0 % of the time of kernels is in no category; --categories has further rules"


def test_a_launchs_time_by_category_goes_into_the_records_of_a_run():
    rows = (
        dataclasses.replace(kernel("flash_fwd", "attention", 20, 30.0), backend="sdpa", case="c"),
        dataclasses.replace(kernel("gemm", "matmul", 40, 20.0), backend="sdpa", case="c"),
        dataclasses.replace(kernel("gemm2", "matmul", 40, 10.0), backend="sdpa", case="c"),
    )
    steps = Capture(tool="torch", name="x", source="x", launches=10, window_ms=70.0, busy_ms=60.0, kernels=rows)
    assert by_category(steps) == {
        ("sdpa", "c"): {"launch_ms_attention": 3.0, "launch_ms_matmul": 3.0, "launch_ms_idle": 1.0}
    }
    whole = dataclasses.replace(steps, ranges=(RangeRow(name="Inference", calls=1, gpu_ms=70.0),))
    assert by_category(whole) == {}
    assert by_category(dataclasses.replace(steps, tool="ncu")) == {}
