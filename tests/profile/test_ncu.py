"""Nsight Compute's output: synthetic CSV of both pages, and its report through a fake of NVIDIA's module."""

import enum
import sys
import types
from pathlib import Path

import made_up_captures as made
import pytest

from attnbench.errors import RunFileError, Unavailable
from attnbench.profile import counters, ncu_csv, ncu_rep
from attnbench.profile.capture import Advice


def read(text, rules, **more):
    return ncu_csv.parse(text, name="x", source="x.csv", rules=rules, **more)


def test_the_raw_page(rules):
    found = read(made.ncu_raw(), rules)
    flash, copy = found.kernels
    assert (flash.backend, flash.case, flash.range, flash.calls) == ("sdpa-flash", made.CASE, made.RANGE, 2)
    assert (flash.mean_ms, flash.min_ms, flash.max_ms, flash.total_ms) == pytest.approx((0.105, 0.10499, 0.10501, 0.21))
    assert (flash.grid, flash.block) == ((8, 2, 8), (128, 1, 1))
    assert (copy.backend, copy.category, copy.mean_ms) == (None, "copy", pytest.approx(0.0032))
    assert found.device == "NVIDIA H200"


def test_its_counters_in_our_units(rules):
    flash = read(made.ncu_raw(), rules).kernels[0]
    assert flash.counters == {
        "duration_ms": pytest.approx(0.105),
        "cycles": 188412,
        "sm_mhz": 1790.0,
        "registers": 168,
        "theoretical_occupancy_percent": 18.75,
        "achieved_occupancy_percent": 17.9,
        "limit_registers_blocks": 3,
        "l2_hit_percent": 88.8,
        "dram_percent": 21.3,
        "dram_bytes": 17_000_000,
        "sm_percent": 68.4,
        "tensor_percent": 71.02,
        "instructions_per_cycle": None,
        "stall_long_scoreboard": 1.25,
        "stall_math_pipe_throttle": 2.4,
        "stall_selected": 1.0,
    }
    assert counters.worst_stall(flash) == ("math_pipe_throttle", 2.4)  # selected is no stall


@pytest.mark.parametrize(
    ("metrics", "name", "value"),
    [
        (
            {"sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active": ("%", "40.5")},
            "tensor_percent",
            40.5,
        ),
        ({"sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": ("%", "11")}, "tensor_percent", 11.0),
        (
            {
                "sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_active": ("%", "60"),
                "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": ("%", "1"),
            },
            "tensor_percent",
            60.0,
        ),
        # A kernel of wgmma on an H100 and one of mma.sync: their cycles, not the share of one kind of instruction.
        (
            {
                "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active": ("%", "2.864288"),
                "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active": ("%", "1.432144"),
                "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": ("%", "45.828613"),
            },
            "tensor_percent",
            45.828613,
        ),
        (
            {
                "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active": ("%", "0"),
                "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active": ("%", "12.07"),
                "sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_active": ("%", "0"),
                "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "13.5"),
            },
            "tensor_percent",
            13.5,
        ),
        ({"dram__bytes.sum": ("byte", "1,000"), "dram__bytes_read.sum": ("byte", "1")}, "dram_bytes", 1000.0),
        ({"dram__bytes_read.sum": ("byte", "1")}, "dram_bytes", KeyError),
        ({"dram__bytes.sum.per_second": ("Tbyte/s", "1.5")}, "dram_gbps", 1500.0),
        ({"gpu__time_duration.sum": ("nsecond", "5,472")}, "duration_ms", 0.005472),
        ({"gpu__time_duration.sum": ("", "5,472")}, "duration_ms", None),
        ({"smsp__average_warp_latency_issue_stalled_barrier.ratio": ("inst", "0.50")}, "stall_barrier", 0.5),
    ],
)
def test_names_and_units_of_other_cards_and_versions(rules, metrics, name, value):
    found = read(made.ncu_raw(metrics, launches=[("k", None, {})]), rules).kernels[0].counters
    if value is KeyError:
        assert name not in found
    elif value is not None:
        assert found[name] == pytest.approx(value)


def test_a_comma_for_decimals(rules):
    german = {name: (unit, value.translate(str.maketrans(",.", ".,"))) for name, (unit, value) in made.HOPPER.items()}
    launches = [(made.FLASH, None, {})]
    assert (
        read(made.ncu_raw(german, launches=launches), rules).kernels[0].counters
        == read(made.ncu_raw(launches=launches), rules).kernels[0].counters
    )


def test_the_details_page(rules):
    (row,) = read(made.ncu_details(), rules).kernels
    assert row.counters == {
        "duration_ms": pytest.approx(0.10499),
        "cycles": 188412,
        "registers": 168,
        "memory_percent": 24.0,
        "dram_gbps": 162.0,
    }
    assert row.advice[0] == Advice(
        rule="TheoreticalOccupancy",
        speedup_percent=31.6,
        scope="local",
        text='The 3.00 theoretical warps per scheduler are below the maximum of 16, "limited" by registers.',
    )
    assert row.advice[1].speedup_percent is None


def test_a_remark_of_several_lines(rules):
    text = made.ncu_details().replace("Compute is well used.", "Compute\nis\n\nwell used.")
    assert read(text, rules).kernels[0].advice[1].text == "Compute is well used."


def test_raw_with_the_advice_of_the_details(rules):
    flash, copy = read(made.ncu_raw(), rules, advice=made.ncu_details()).kernels
    assert [one.rule for one in flash.advice] == ["TheoreticalOccupancy", "SOLBottleneck"]
    assert flash.counters["registers"] == 168
    assert copy.advice == ()


def test_a_range_in_a_range(rules):
    text = made.ncu_raw(launches=[("k", None, {})]).replace(
        '"127.0.0.1","",',
        '"127.0.0.1","1  ""<default domain>:' + made.RANGE + ":none:none:none:none"
        ':none:none"" ""<CCCL>:reduce:none:none:none:none:none:none""",',
    )
    (row,) = read(text, rules).kernels
    assert (row.range, row.backend) == ("reduce", "sdpa-flash")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==PROF== Connected\n", "has no header line"),
        ('"ID","Process ID","Process Name"\n"0","1","x"\n', "has no column Kernel Name"),
        (made.ncu_raw(launches=[("k", None, {})])[:1500].rsplit("\n", 1)[0] + "\n", "holds no kernel"),
        (made.ncu_raw(noise=False)[:-40], "is cut short"),
        (made.ncu_raw(noise=False)[:-300], "is cut short"),
    ],
)
def test_a_csv_that_cannot_be_read(rules, text, words):
    with pytest.raises(RunFileError, match=r"ncu: capture=x\.csv") as refused:
        read(text, rules)
    assert words in str(refused.value)


# ── the report file ────────────────────────────────────────────────────────────────────────────────


class Metric:
    def __init__(self, value, unit=""):
        self._value, self._unit = value, unit

    def value(self):
        return self._value

    def unit(self):
        return self._unit


METRICS = {
    "gpu__time_duration.sum": Metric(104992, "ns"),
    "launch__registers_per_thread": Metric(168),
    "launch__grid_dim_x": Metric(8),
    "launch__grid_dim_y": Metric(2),
    "launch__grid_dim_z": Metric(8),
    "launch__block_dim_x": Metric(128),
    "launch__block_dim_y": Metric(1),
    "launch__block_dim_z": Metric(1),
    "device__attribute_display_name": Metric("NVIDIA H200"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": Metric(float("nan"), "%"),
    "breakdown": Metric(None),
}


class Action:
    NameBase_DEMANGLED = 1

    def name(self, base=0):
        return made.FLASH if base == 1 else "flash_fwd_kernel"

    def metric_names(self):
        return tuple(METRICS)

    def metric_by_name(self, name):
        return METRICS[name]

    def nvtx_state(self):
        domain = types.SimpleNamespace(push_pop_ranges=lambda: (made.RANGE,))
        return types.SimpleNamespace(domains=lambda: (0,), domain_by_id=lambda key: domain)

    def rule_results_as_dicts(self):
        return [
            {
                "rule_identifier": "SOLBottleneck",
                "rule_message": {"message": "Look  at\nDRAM.", "title": "t"},
                "speedup_estimation": {"type": 1, "speedup": 12.5},
            },
            {"rule_identifier": "Silent", "rule_message": {}},
            {
                "rule_identifier": "AsText",
                "rule_message": "{'message': 'Fewer bytes.', 'title': 't'}",
                "speedup_estimation": "{'type': 2, 'speedup': 3.5}",
            },  # ncu 2025.4 gives dictionaries as texts
            {"rule_identifier": "Odd", "rule_message": "<no dictionary>", "speedup_estimation": None},
        ]


@pytest.fixture
def module(monkeypatch):
    def load_report(path):
        if b"half" in Path(path).read_bytes():
            raise RuntimeError(f"Failed to open report\n{path}")
        found = types.SimpleNamespace(num_actions=lambda: 1, action_by_idx=lambda index: Action())
        return types.SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda index: found)

    made_up = types.ModuleType("ncu_report")
    made_up.load_report, made_up.IAction = load_report, Action
    made_up.SpeedupType = enum.IntEnum("SpeedupType", {"LOCAL": 1, "GLOBAL": 2})
    monkeypatch.setitem(sys.modules, "ncu_report", made_up)
    return made_up


def test_a_report_by_nvidias_module(tmp_path, rules, module):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0")
    found = ncu_rep.parse(path, name="x", rules=rules)
    (row,) = found.kernels
    assert (row.name, row.backend, row.grid, row.block) == (made.FLASH, "sdpa-flash", (8, 2, 8), (128, 1, 1))
    assert row.counters == {"duration_ms": 0.104992, "registers": 168, "sm_percent": None}
    assert row.advice == (
        Advice(rule="AsText", text="Fewer bytes.", speedup_percent=3.5, scope="global"),
        Advice(rule="SOLBottleneck", text="Look at DRAM.", speedup_percent=12.5, scope="local"),
    )
    assert found.device == "NVIDIA H200"


def test_a_report_that_is_cut_short(tmp_path, rules, module):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0half")
    with pytest.raises(RunFileError, match=r"x\.ncu-rep cannot be read \(Failed to open report"):
        ncu_rep.parse(path, name="x", rules=rules)


def test_a_report_where_nothing_reads_it(tmp_path, rules, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("attnbench.machine.tools.FOLDERS", ())
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0")
    with pytest.raises(Unavailable, match="pip install ncu-report"):
        ncu_rep.parse(path, name="x", rules=rules)


def test_a_report_through_ncu_itself(tmp_path, rules, monkeypatch, fake_tools):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0")
    found = ncu_rep.parse(path, name="x", rules=rules)
    assert [row.calls for row in found.kernels] == [2, 1]
    assert found.kernels[0].advice[0].rule == "TheoreticalOccupancy"
    pages = [options["--page"] for options, _ in fake_tools.calls()]
    assert pages == ["raw", "details"]


def test_a_module_that_is_older_than_the_report(tmp_path, rules, module, fake_tools):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\0half")  # the module of the fixture refuses it
    assert [row.calls for row in ncu_rep.parse(path, name="x", rules=rules).kernels] == [2, 1]
