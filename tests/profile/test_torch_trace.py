"""Traces of torch.profiler: synthetic ones in torch 2.11's format, and a real one of this machine's CPU."""

import gzip
import json

import made_up_captures as made
import pytest

from attnbench.errors import RunFileError
from attnbench.profile import torch_trace
from attnbench.profile.capture import Capture, KernelRow, dumps, loads


def test_kernels_ranges_copies_and_api(tmp_path, rules):
    found = torch_trace.parse(made.write_trace(tmp_path / "x.trace.json"), name="x", rules=rules)
    (flash,) = found.kernels
    assert (flash.backend, flash.case, flash.calls, flash.category) == ("sdpa-flash", made.CASE, 2, "attention")
    assert (flash.total_ms, flash.min_ms, flash.max_ms) == pytest.approx((0.084, 0.040, 0.044))
    assert (flash.grid, flash.block) == ((8, 2, 8), (128, 1, 1))
    (ours,) = found.ranges
    # 300-340; 350-400, the copy that a second thread asked for in the range's time included
    assert (ours.calls, ours.gpu_ms, ours.busy_ms, ours.host_ms) == pytest.approx((2, 0.090, 0.090, 0.100))
    assert [(row.operation, row.calls) for row in found.copies] == [("Memcpy DtoD (Device -> Device)", 1)]
    assert {row.name: row.calls for row in found.api} == {"cudaLaunchKernel": 2, "cuLaunchKernel": 1}
    assert (found.window_ms, found.busy_ms) == pytest.approx((0.100, 0.090))
    assert (found.device, found.tool_version) == ("NVIDIA H200", "2.11.0")


def test_packed_and_bare_lists(tmp_path, rules):
    packed = tmp_path / "x.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(made.torch_trace()["traceEvents"]).encode()))
    assert len(torch_trace.parse(packed, name="x", rules=rules).kernels) == 1


def operator(name, start, end, thread=1):
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": thread}


def of_cpu(tmp_path, rules, *events):
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return torch_trace.parse(path, name="x", rules=rules)


def test_operators_of_a_cpu_stand_for_their_time_once(tmp_path, rules):
    capture = of_cpu(
        tmp_path,
        rules,
        # most of it is the product inside: that stands for it, and the rest is nobody's
        operator("aten::matmul", 0, 100),
        operator("aten::expand", 1, 3),
        operator("aten::bmm", 5, 95),
        operator("aten::resize_", 6, 8),
        # little of it is inside: it stands for all
        operator("aten::_scaled_dot_product_flash_attention_for_cpu", 100, 200),
        operator("aten::empty", 110, 120),
        operator("aten::add", 0, 50, thread=2),
    )
    rows = {row.short: (row.category, row.calls, row.total_ms) for row in capture.kernels}
    assert rows == {
        "bmm": ("matmul", 1, pytest.approx(0.09)),
        "expand": ("view", 1, pytest.approx(0.002)),
        "_scaled_dot_product_flash_attention_for_cpu": ("attention", 1, pytest.approx(0.1)),
        "add": ("elementwise add", 1, pytest.approx(0.05)),
    }
    assert capture.device == "CPU"
    assert capture.notes == ("rows are operators of torch on the CPU, each with the shorter ones it is made of",)


def test_operators_beside_kernels_are_no_rows(tmp_path, rules):
    kernel = {**operator("some_kernel", 20, 30), "cat": "kernel"}
    capture = of_cpu(tmp_path, rules, operator("aten::bmm", 0, 100), kernel)
    assert [row.name for row in capture.kernels] == ["some_kernel"]
    assert (capture.device, capture.notes) == (None, ())


def test_a_real_trace_of_a_cpu(tmp_path, rules):
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    x = torch.ones(64, 64)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        for _ in range(3):
            with record_function("eager/case-fwd"):
                torch.mm(x, x)
    path = tmp_path / "cpu.json"
    profiler.export_chrome_trace(str(path))
    (row,) = [one for one in torch_trace.parse(path, name="x", rules=rules).kernels if one.category == "matmul"]
    assert (row.short, row.calls, row.backend, row.case) == ("mm", 3, "eager", "case-fwd")


def test_a_trace_of_nothing_is_refused(tmp_path, rules):
    call = {**operator("cudaLaunchKernel", 0, 1), "cat": "cuda_runtime"}
    with pytest.raises(RunFileError, match=r"cpu\.json holds no kernel, no copy and no operator"):
        of_cpu(tmp_path, rules, call)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: json.dumps(data)[:400],
        lambda data: "{}",
        lambda data: '{"traceEvents": 3}',
        lambda data: "[]",
        lambda data: json.dumps({**data, "traceEvents": [{**one, "ts": "soon"} for one in data["traceEvents"]]}),
        lambda data: json.dumps({**data, "traceEvents": [3, None, "x"]}),
    ],
)
def test_a_trace_that_cannot_be_read(tmp_path, rules, spoil):
    path = tmp_path / "x.json"
    path.write_text(spoil(made.torch_trace()))
    with pytest.raises(RunFileError, match=r"torch: capture=x\.json"):
        torch_trace.parse(path, name="x", rules=rules)


def test_a_packed_trace_that_is_cut_short(tmp_path, rules):
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(json.dumps(made.torch_trace()).encode())[:200])
    with pytest.raises(RunFileError, match="is cut short"):
        torch_trace.parse(path, name="x", rules=rules)


def parsed(path, rules):
    """The capture, or the line that refuses it."""
    try:
        return torch_trace.parse(path, name="x", rules=rules)
    except RunFileError as error:
        return str(error)


@pytest.mark.parametrize(
    ("field", "odd"),
    [
        ("ts", float("nan")),
        ("ts", 1e300),
        ("dur", 10**400),
        ("ts", None),
        ("dur", "long"),
        ("name", None),
        ("cat", ["kernel"]),
        ("tid", [1]),
        ("pid", {}),
        ("args", [3]),
        ("args", {"correlation": [1]}),
        ("args", {"External id": {}, "grid": 3}),
        ("args", {"bytes": 10**400, "grid": [10**400, 1, 1], "block": [True, 1, 1]}),
    ],
)
def test_an_odd_event_is_read_or_refused_in_one_line(tmp_path, rules, field, odd):
    data = made.torch_trace()
    for place, event in enumerate(data["traceEvents"]):
        spoilt = {**event, field: odd} if odd is not None else {key: event[key] for key in event if key != field}
        path = tmp_path / "odd.json"
        path.write_text(
            json.dumps(
                {**data, "traceEvents": [*data["traceEvents"][:place], spoilt, *data["traceEvents"][place + 1 :]]}
            )
        )
        found = parsed(path, rules)
        if isinstance(found, Capture):
            assert loads(dumps((found,)), "x") == (found,)
        assert isinstance(found, Capture) or found.startswith("torch: capture=odd.json has an event that cannot be ")


def test_a_figure_that_is_no_number_is_not_known():
    row = KernelRow(
        name="k\x1b",
        short="k",
        category="other",
        calls=1,
        total_ms=float("nan"),
        mean_ms=1e200,
        counters={"dram": float("inf"), "l2": 2.0},
    )
    assert (row.name, row.total_ms, row.mean_ms, row.counters) == (r"k\u001b", None, None, {"dram": None, "l2": 2.0})
