"""Real captures by ncu 2025.3.1 and torch.profiler 2.11 on an H200 (captures/README.md), read and put into tables."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from made_up_captures import CAPTURES
from rich.console import Console

from attnbench.profile import counters, ncu_csv, reading, seed_003, sources, tables
from attnbench.profile.capture import dumps
from attnbench.profile.roofline import points
from attnbench.record import Work
from attnbench.report.profile import render_profile_table

OURS = sorted([*CAPTURES.glob("ncu-*"), *CAPTURES.glob("torch-*")])
CASE = "b1-s512-h4-d64-bf16-fwd"
FLOPS = 4 * 4 * 512 * 512 * 64
"""Of the two products: 4 heads, 512 queries by 512 keys, 64 dims."""


@pytest.fixture
def read(rules):
    return lambda name: sources.read(CAPTURES / name, rules)[0]


@pytest.fixture
def with_advice(rules):
    return ncu_csv.parse(
        (CAPTURES / "ncu-2025.3.1-raw.csv").read_text(),
        name="sdpa-flash",
        source="x.ncu-rep",
        rules=rules,
        advice=(CAPTURES / "ncu-2025.3.1-details.csv").read_text(),
    )


# ── ncu ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["raw", "raw-base", "full-raw", "details"])
def test_every_page_names_the_kernels_their_backend_and_their_shape(read, name):
    main, combine = read(f"ncu-2025.3.1-{name}.csv").kernels
    assert (main.short, combine.short) == ("flash_fwd_splitkv_kernel", "flash_fwd_splitkv_combine_kernel")
    for row in (main, combine):
        assert (row.backend, row.case, row.range) == ("sdpa-flash", CASE, f"sdpa-flash/{CASE}")
        assert (row.category, row.calls) == ("attention", 1)
    assert (main.grid, main.block, combine.grid) == ((8, 2, 4), (128, 1, 1), (256, 1, 1))


def test_counters_of_the_set_that_is_taken_by_default(read):
    capture = read("ncu-2025.3.1-raw.csv")
    main, combine = capture.kernels
    wanted = {
        "duration_ms": 0.007072,
        "cycles": 12920,
        "sm_mhz": 1820.772,
        "dram_mhz": 3185.52,
        "registers": 255,
        "shared_bytes": 74752,
        "waves": 0.24,
        "theoretical_occupancy_percent": 12.5,
        "achieved_occupancy_percent": 6.208339,
        "limit_registers_blocks": 2,
        "limit_shared_blocks": 2,
        "l1_hit_percent": 0.204165,
        "l2_hit_percent": 67.486029,
        "dram_percent": 2.522818,
        "memory_percent": 9.789859,
        "dram_gbps": 120.868778,
        "sm_percent": 8.046467,
        "tensor_percent": 14.981141,
        "instructions_per_cycle": 0.830205,
        "stall_gmma": 0.0,
        "stall_misc": 0.000936,
    }
    assert {name: main.counters[name] for name in wanted} == pytest.approx(wanted)
    assert len([name for name in main.counters if name.startswith("stall_")]) == 19
    assert counters.worst_stall(main) == ("no_instruction", 1.172503)
    assert counters.worst_stall(combine) == ("long_scoreboard", 2.72246)
    assert combine.counters["tensor_percent"] == 0.307689
    assert None not in main.counters.values()
    assert "dram_bytes" not in main.counters  # the roofline takes them from rate and time
    assert capture.device == "NVIDIA H200"


def test_units_that_ncu_scaled_and_base_units_say_the_same_to_the_digits_of_each(read):
    scaled, base = (read(f"ncu-2025.3.1-{name}.csv").kernels for name in ("raw", "raw-base"))
    for one, other in zip(scaled, base, strict=True):
        assert one.counters.keys() == other.counters.keys()
        for name, value in one.counters.items():
            assert other.counters[name] == pytest.approx(value, rel=1e-6, abs=0.0051), name
    assert (scaled[0].counters["stall_misc"], base[0].counters["stall_misc"]) == (0.000936, 0.0)


def test_the_full_set_adds_traffic_and_eligible_warps(read):
    basic, full = read("ncu-2025.3.1-raw.csv").kernels, read("ncu-2025.3.1-full-raw.csv").kernels
    for one, other in zip(basic, full, strict=True):
        assert set(other.counters) - set(one.counters) == {
            "dram_bytes",
            "eligible_warps",
            "code_hit_percent",
            "code_cache_percent",
        }
        assert set(one.counters) <= set(other.counters)
    assert [row.counters["dram_bytes"] for row in full] == pytest.approx([854_784, 1_088_000])
    assert full[0].counters["eligible_warps"] == 0.217602
    busy = [full[0].counters[name] for name in ("code_hit_percent", "code_cache_percent", "l2_percent")]
    assert busy == pytest.approx([73.415238, 34.102192, 8.076401])


def test_the_details_page_alone(read):
    main = read("ncu-2025.3.1-details.csv").kernels[0]
    assert main.total_ms == pytest.approx(0.00707)
    assert main.counters["sm_mhz"] == pytest.approx(1820)
    assert main.counters["memory_percent"] == 9.79  # a share here, and a rate in another section
    assert main.counters["dram_gbps"] == 120.87


def test_the_roofline_of_the_default_set(read):
    (point,) = points([read("ncu-2025.3.1-raw.csv")], {CASE: Work(flops=FLOPS, bytes=1)}, {}, launches=1)
    assert point.ms == pytest.approx(0.012448)
    assert point.dram_mb == pytest.approx(120.868778 * 7.072e-3 + 202.380952 * 5.376e-3)
    assert point.tflops == pytest.approx(FLOPS / 12.448e-6 / 1e12)


def test_advice_is_that_of_each_kernel(with_advice):
    main, combine = with_advice.kernels
    assert [(one.rule, one.speedup_percent, one.scope) for one in main.advice] == [
        ("LaunchConfiguration", 51.52, "global"),
        ("WorkloadImbalance", 20.74, "global"),
        ("WorkloadImbalance", 20.16, "global"),
        ("WorkloadImbalance", 20.16, "global"),
        ("WorkloadImbalance", 10.16, "global"),
        ("HighPipeUtilization", 94.22, "local"),
        ("TheoreticalOccupancy", 87.5, "local"),
        ("SOLBottleneck", None, None),
        ("CPIStall", None, None),
    ]
    assert len(combine.advice) == 10


def test_the_table_of_advice_says_a_thing_once_and_prints_no_link(with_advice):
    table = tables.advice([with_advice], whole=True)
    assert [(kernel.endswith("combine_kernel"), rule) for _, kernel, rule, *_ in table.rows] == [
        (False, "LaunchConfiguration"),
        (False, "WorkloadImbalance"),
        (True, "WorkloadImbalance"),
        (False, "HighPipeUtilization"),
        (True, "HighPipeUtilization"),
        (False, "TheoreticalOccupancy"),
        (True, "AchievedOccupancy"),
        (True, "TheoreticalOccupancy"),
        (False, "SOLBottleneck"),
        (True, "SOLBottleneck"),
        (True, "LaunchConfiguration"),
    ]
    assert table.rows[1][3] == 20.74  # what promises most of the four
    text = " ".join(str(cell) for row in table.rows for cell in row)
    assert "could not be found" not in text
    assert "http" not in text
    assert "See the Hardware Model description" in text
    assert table.notes[-1].startswith("8 more in captures.json")
    assert "https://docs.nvidia.com" in dumps((with_advice,))


def test_the_table_of_advice_has_a_sentence_a_rule_where_not_all_is_wanted(with_advice):
    short, whole = tables.advice([with_advice]), tables.advice([with_advice], whole=True)
    assert [row[:-1] for row in short.rows] == [row[:-1] for row in whole.rows]
    texts = [row[-1] for row in short.rows]
    assert all(long.startswith(text) and ". " not in text for text, (*_, long) in zip(texts, whole.rows, strict=True))
    assert texts[0].endswith("which is less than the GPU's 132 multiprocessors")
    assert texts[5].endswith("are below the hardware maximum of 16")
    assert texts[8].endswith("resulting in only 0.2 full waves across all SMs")  # a decimal point ends nothing
    assert "--verbose shows the whole text of each rule" in short.notes
    assert not any("--verbose" in note for note in whole.notes)
    console = Console(width=100, file=io.StringIO())
    render_profile_table(
        console, short.title, short.heads, short.texts(), numbers=short.numbers(), ranks=short.ranks, notes=()
    )
    lines = console.file.getvalue().strip().splitlines()
    assert len(lines) == 2 + len(short.rows) + any("for want of room" in line for line in lines)


def test_what_the_counters_mean_is_said_of_the_longest_kernel(with_advice):
    (said,) = reading.of_counters([with_advice])
    assert said.startswith(
        "sdpa-flash: flash_fwd_splitkv_kernel uses 8 % of the SMs' throughput and 3 % of the memory's"
    )
    assert said in tables.counters([with_advice]).notes
    row = with_advice.kernels[0]
    for found, words in (
        ({"sm_percent": 93.0, "dram_percent": 10.0}, "93 % of the SMs' throughput: good (over 90 %)"),
        ({"sm_percent": 20.0, "dram_percent": 84.0}, "84 % of the memory's bandwidth: good (over 80 %)"),
    ):
        one = dataclasses.replace(with_advice, kernels=(dataclasses.replace(row, counters=found),))
        assert reading.of_counters([one]) == [f"sdpa-flash: flash_fwd_splitkv_kernel uses {words}"]


@pytest.mark.parametrize(
    ("busy", "words"), [(9.5, "95 % of the window: good"), (8.0, None), (5.0, "50 % of the window: poor")]
)
def test_a_busy_gpu_is_said_of_a_window(with_advice, busy, words):
    timed = dataclasses.replace(with_advice, tool="torch", device="a card", window_ms=10.0, busy_ms=busy)
    found = reading.of_times([timed])
    assert len(found) == (words is not None)
    assert all(words in one and one in tables.categories([timed]).notes for one in found)
    assert reading.of_times([dataclasses.replace(timed, device="CPU")]) == []


# ── torch.profiler ─────────────────────────────────────────────────────────────────────────────────


def test_a_trace_of_torchs_flash(read):
    found = read("torch-2.11-sdpa-flash.trace.json")
    assert [(row.short, row.category, row.backend, row.case, row.calls, row.grid) for row in found.kernels] == [
        ("flash_fwd_splitkv_kernel", "attention", "sdpa-flash", CASE, 2, (8, 2, 4)),
        ("flash_fwd_splitkv_combine_kernel", "attention", "sdpa-flash", CASE, 2, (256, 1, 1)),
    ]
    assert [row.total_ms for row in found.kernels] == pytest.approx([0.011584, 0.007104])
    (ours,) = found.ranges
    assert (ours.name, ours.calls) == (f"sdpa-flash/{CASE}", 2)
    assert (ours.host_ms, ours.gpu_ms, ours.busy_ms) == pytest.approx((3.087282, 0.037983, 0.018688))
    assert (found.window_ms, found.busy_ms) == pytest.approx((0.414143, 0.018688))
    assert {row.name: row.calls for row in found.api} == {
        "cudaLaunchKernel": 4,
        "cudaDeviceSynchronize": 3,
        "cudaFuncSetAttribute": 2,
    }
    assert (found.device, found.tool_version) == ("NVIDIA H200", "2.11.0+cu130")


def test_a_trace_of_eager_attention(read):
    found = read("torch-2.11-eager.trace.json")
    assert [(row.short, row.category, row.calls) for row in found.kernels] == [
        ("softmax_warp_forward", "reduction", 2),
        ("nvjet_sm90_tst_64x24_64x16_1x4_h_bz_NNT", "matmul", 2),
        ("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT", "matmul", 2),
        ("MulFunctor", "elementwise", 2),
    ]
    assert {row.backend for row in found.kernels} == {"eager"}  # products are launched by the driver's API
    assert {row.name: row.calls for row in found.api} == {
        "cuLaunchKernelEx": 4,
        "cudaLaunchKernel": 4,
        "cudaDeviceSynchronize": 3,
    }
    table = {row[0]: row[1:] for row in tables.categories([found]).rows}
    assert table["matmul"] == pytest.approx((0.012607, 100 * 0.012607 / 0.574561))
    assert table["reduction"] == pytest.approx((0.007327, 100 * 0.007327 / 0.574561))
    assert table["elementwise"] == pytest.approx((0.003488, 100 * 0.003488 / 0.574561))
    assert table["idle"] == pytest.approx((0.574561 - 0.023422, 100 * (1 - 0.023422 / 0.574561)))


def test_a_capture_named_after_its_tool_is_named_once(read):
    found = read("torch-2.11-eager.trace.json")
    assert tables.kernels(found).title == "kernels of torch-2.11-eager (torch)"
    assert tables.kernels(dataclasses.replace(found, name="torch")).title == "kernels (torch)"


# ── what must not be in them ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_what_we_took_names_no_folder_and_no_host(path):
    text = path.read_text("utf-8")
    assert [word for word in ("/root", "/home/", "/tmp/", "/usr/", "/opt/", "C:\\") if word in text] == []
    if path.name.startswith("ncu"):
        assert {line.split('","')[3] for line in text.splitlines()[2:]} == {"127.0.0.1"}
    if path.suffix == ".json":
        assert "hostname" not in json.dumps(json.loads(text)).casefold()


# ── a whole video model ────────────────────────────────────────────────────────────────────────────


def test_every_kernel_of_a_generation_has_a_category_and_attention_is_called_in_every_layer(rules):
    (found,) = sources.read(CAPTURES / "video-sdpa-h200.json", rules)
    times = tables.by_category(found)
    assert 100 * times.get("other", 0.0) / found.kernel_ms < 1
    assert times["attention"] == pytest.approx(340.3, abs=0.1)
    assert "attention preparation" not in times
    (in_place,) = [row for row in found.ranges if row.name == "attention"]
    assert in_place.calls == 30
    assert sum(row.calls for row in found.kernels if row.category == "attention") == 30
    assert dict(seed_003.table([found]).rows) == {
        "Attn (%)": "9.19%",
        "Attn (s)": "0.34s",
        "direct_copy_kernel_cuda (times)": "10,743",
        "direct_copy_kernel_cuda (ms)": "227.1ms",
        "CUDAFunctor_add (times)": "10,207",
        "CUDAFunctor_add (ms)": "490.6ms",
        "Total (s)": "4.22s",
    }
