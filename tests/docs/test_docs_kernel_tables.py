"""The tables of our kernels beside others': missed targets are reported, and unmeasured rows are not judged."""

from __future__ import annotations

from types import SimpleNamespace

import flash
import kernel_tables
import pytest
import tables


def row(mode: str = "fwd", **ratios: float) -> flash.Row:
    peers = {name.replace("_", "-"): (500.0, ratio, ratio - 0.01, ratio + 0.01) for name, ratio in ratios.items()}
    return flash.Row(256, 4096, True, mode, "flash-triton", 450.0, peers, ())


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ({"sdpa_cudnn": 1.0, "fa3_fwd": 0.95}, ("0.950 [0.940, 0.960] of `fa3-fwd`, 0.9 wanted", "reached")),
        ({"sdpa_cudnn": 0.8, "fa3_fwd": 0.95}, ("0.800 [0.790, 0.810] of `sdpa-cudnn`, 0.9 wanted", "**missed**")),
        ({"sdpa_cudnn": 0.9}, ("0.900 [0.890, 0.910] of `sdpa-cudnn`, 0.9 wanted", "reached")),
        ({}, ("", "")),
    ],
)
def test_the_peer_with_the_least_room_decides(ratios, said):
    assert kernel_tables.held(row(**ratios), {flash.CUDNN: 0.9, flash.FA3: 0.9}) == said


def test_a_step_of_the_ladder_is_held_against_the_one_measured_before_it():
    def race(*measured: tuple[str, float]) -> SimpleNamespace:
        records = [
            SimpleNamespace(
                backend=name,
                case={"seqlen": 4096, "headdim": 128, "causal": True},
                time=SimpleNamespace(samples_ms=[ms] * 9, rounds=list(range(9))),
                rate=SimpleNamespace(tflops=100 / ms),
            )
            for name, ms in measured
        ]
        return SimpleNamespace(records=records)

    forms = {step: f"flash-triton[{form}]" for step, form in kernel_tables.LADDER[128]}
    assert kernel_tables.ladder_rows(race(("fa3-fwd", 1.0))) == []
    [found] = kernel_tables.ladder_rows(race((forms["ws"], 1.0)))
    assert found[1:6] == ["ws", "`m128n128w8s2-tma-ws`", "100", "", ""]
    _, found = kernel_tables.ladder_rows(
        race((forms["ws"], 1.0), (forms["persistent"], 0.8), ("fa3-fwd", 0.5), ("sdpa-cudnn", 0.6))
    )
    assert found[:5] == ["128", "persistent", "`m128n128w8s2-tma-ws-persistent`", "125", "62 %"]
    assert found[5].startswith("1.250")
    assert found[6:] == ["", "", ""]


def test_the_clock_is_of_the_records_of_a_mode():
    records = [
        SimpleNamespace(time=SimpleNamespace(sm_mhz=clocks), case={"mode": mode})
        for clocks, mode in (((1700.0, None, 1720.0), "fwd"), ((1800.0,), "fwd"), ((1500.0,), "bwd"), (None, "bwd"))
    ]
    assert kernel_tables.clock(SimpleNamespace(records=records), "fwd") == "SM clock 1710-1800 MHz"
    assert kernel_tables.clock(SimpleNamespace(records=records[3:]), "bwd") == "SM clock not read"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("speed-h200", 15),
        ("flash-fwd-h200", 20),
        ("flash-bwd-h200", 26),
        ("hstu-dense-fwd-h200", 13),
        ("hstu-dense-bwd-h200", 13),
        ("hstu-dense-bwd-before-h200", 26),
        ("hstu-bsa-fwd-h200", 9),
        ("hstu-bsa-fwd-bwd-h200", 3),
        ("hstu-jagged-h200", 5),
        ("flash-ncu-h200", 9),
        ("flash-sparse-h200", 37),
        ("flash-sparse-forms-h200", 10),
        ("flash-quant-h200", 16),
        ("flash-sparse-quant-h200", 40),
        ("flash-sparse-quant-forms-h200", 10),
    ],
)
def test_every_shape_of_the_committed_files_has_its_row(name, rows):
    lines = [line for line in tables.render(name, str).splitlines() if line.startswith("| ")]
    assert len(lines) - 2 == rows


def test_uneven_lengths_are_held_against_whole_ones_of_their_shape():
    def record(lengths, tflops, backend="hstu-triton"):
        case = {"nheads": 4, "attn_dim": 128, "seqlen": 2048, "lengths": lengths}
        return SimpleNamespace(backend=backend, case=case, rate=SimpleNamespace(tflops=tflops))

    records = [record("full", 700.0), record("uniform", 630.0), record("full", 500.0, "hstu-fbgemm")]
    assert kernel_tables.jagged_rows(SimpleNamespace(records=records)) == [
        ["4", "128", "2048", "700", "630", "0.900", "0.9", "reached"]
    ]
    assert kernel_tables.jagged_rows(SimpleNamespace(records=records[:1])) == []


def test_a_kernel_of_a_call_is_a_row_unless_it_is_short():
    counters = {"tensor_percent": 43.1, "l2_percent": 23.0, "dram_percent": 9.2, "code_hit_percent": 90.6}
    counters |= {"dram_bytes": 158.2e6, "stall_wait": 1.0, "stall_barrier": 3.0, "stall_selected": 0.5}
    kernels = [
        {"total_ms": ms, "case": "c", "name": name, "counters": counters} for name, ms in (("a", 0.36), ("b", 0.003))
    ]
    assert kernel_tables.launch_rows([{"kernels": kernels}]) == [
        ["`c`", "`a`", "360", "43 %", "23 %", "9 %", "91 %", "158", "barrier 67 %, wait 22 %"]
    ]


def test_a_capture_is_a_row_of_its_longest_kernel():
    counters = {
        "cycles": 5000.0,
        "sm_mhz": 1700.0,
        "tensor_percent": 75.0,
        "l2_percent": 50.0,
        "code_hit_percent": 95.0,
        "stall_no_instruction": 1.0,
        "stall_long_scoreboard": 2.0,
        "stall_selected": 7.0,
    }
    longest = {"total_ms": 2.0, "case": "c", "backend": "b", "counters": counters}
    assert kernel_tables.counter_rows([{"kernels": [{"total_ms": 0.1, "counters": {}}, longest]}]) == [
        ["`c`", "`b`", "5,000", "1700", "75.0 %", "50 %", "95.0 %", "10.0 %", "20.0 %"]
    ]
