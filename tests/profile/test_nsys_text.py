"""The output of `nsys stats`: three real captures of three versions, and the other forms by their columns."""

import made_up_captures as made
import pytest

from attnbench.errors import RunFileError
from attnbench.profile import nsys_text


def read(name, rules):
    return nsys_text.parse((made.CAPTURES / name).read_text(), name="x", source=name, rules=rules)


def test_2023_boxed_with_copies(rules):
    found = read("nsys-2023.4.4-boxed-kern-mem.txt", rules)
    assert [row.calls for row in found.kernels] == [144, 291, 195, 96, 16]
    first = found.kernels[0]
    assert (first.total_ms, first.median_ms, first.min_ms, first.max_ms) == (11.294113, 0.0583525, 0.027072, 0.112065)
    assert first.name.startswith("void mul_mat_vec_f<__nv_bfloat16, float, (int)1")
    assert first.name.endswith("const floa…")
    assert [row.category for row in found.kernels] == ["matmul", "matmul", "normalisation", "copy", "attention"]
    assert [(row.operation, row.calls, row.total_ms) for row in found.copies] == [
        ("[CUDA memcpy Host-to-Device]", 895, 786.791968),
        ("[CUDA memcpy Device-to-Host]", 67, 2.578451),
        ("[CUDA memset]", 4, 0.144097),
    ]
    assert found.window_ms is None
    assert found.idle_ms is None
    assert any("rows are missing: those here hold 62 %" in note for note in found.notes)
    assert any("cut the kernel names" in note for note in found.notes)


def test_2025_with_thousands_separators(rules):
    found = read("nsys-2025.5.2-kern.txt", rules)
    assert found.tool_version == "2025.5.2"
    assert len(found.kernels) == 16
    assert found.kernels[0].total_ms == 62589.830968
    assert found.kernels[0].calls == 811520
    assert found.kernels[1].max_ms == 218.945664
    shares = {
        kind: sum(row.total_ms for row in found.kernels if row.category == kind) for kind in ("attention", "copy")
    }
    assert shares["attention"] == pytest.approx(2250.706856 + 1960.511758)
    assert shares["copy"] == pytest.approx(570.704392 + 12.136683)
    assert found.kernels[3].name == (
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
    )


def test_2026_keeps_the_times_of_the_api_apart(rules):
    found = read("nsys-2026.1.1-api-kern-nvtx.txt", rules)
    assert found.tool_version == "2026.1.1"
    assert [(row.name, row.calls, row.total_ms) for row in found.api[:2]] == [
        ("cudaMemcpyAsync", 475600, 2613.66854),
        ("cudaStreamSynchronize", 442800, 1778.504126),
    ]
    assert found.kernel_ms == pytest.approx(362.818668)  # none of the API's seconds among them
    assert [(row.name, row.calls, row.host_ms, row.gpu_ms) for row in found.ranges] == [
        ("combine_single", 200, 7024.131684, None),
        ("dispatch_single", 200, 6526.328065, None),
        ("compute_loop", 200, 4208.569565, None),
    ]
    assert not any("rows are missing" in note for note in found.notes)
    assert found.kernels[12].name == "ampere_sgemm_64x32_sliced1x4_tn"


CSV = """Generating SQLite file profile_fa.sqlite from profile_fa.nsys-rep
Processing [profile_fa.sqlite] with [/opt/nvidia/nsight-systems/2024.4.1/reports/cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,3000000,2,1500000.0,1500000.0,1000000,2000000,707106.8,"void flash_fwd_kernel<Traits<128, 64>, true>(Params, int)"
25.0,1000000,10,100000.0,100000.0,100000,100000,0.0,"void at::native::CUDAFunctor_add<float>(int)"

Processing [profile_fa.sqlite] with [/opt/nvidia/nsight-systems/2024.4.1/reports/nvtx_gpu_proj_sum.py]...
Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns)
:denoise,PushPop,5000000,4000000,2,2500000.0
"""


def test_csv_with_commas_in_the_names_and_projected_ranges(rules):
    found = nsys_text.parse(CSV, name="x", source="x", rules=rules)
    assert found.tool_version == "2024.4.1"
    assert [(row.name, row.calls, row.total_ms) for row in found.kernels] == [
        ("void flash_fwd_kernel<Traits<128, 64>, true>(Params, int)", 2, 3.0),
        ("void at::native::CUDAFunctor_add<float>(int)", 10, 1.0),
    ]
    assert [(row.name, row.gpu_ms, row.host_ms, row.calls) for row in found.ranges] == [("denoise", 5.0, 4.0, 2)]


OLD = """
 ** CUDA GPU Kernel Summary (gpukernsum):

 Time(%)  Total Time (ns)  Instances  Average    Minimum  Maximum   GridXYZ         BlockXYZ        Name
 -------  ---------------  ---------  ---------  -------  -------  --------------  --------------  ----------------
   100.0            40000          4    10000.0     9000    11000    64    8    1   128    1    1  flash_fwd_kernel
"""


def test_2022s_names_and_a_grid(rules):
    (row,) = nsys_text.parse(OLD, name="x", source="x", rules=rules).kernels
    assert (row.total_ms, row.mean_ms, row.min_ms, row.max_ms, row.median_ms) == (0.04, 0.01, 0.009, 0.011, None)
    assert (row.grid, row.block) == ((64, 8, 1), (128, 1, 1))


TRACE = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Bytes (MB),Strm,Name
1000000,2000,1,8,2,8,128,1,1,168,,7,flash_fwd_kernel
1002500,500,2,,,,,,,,2.5,7,[CUDA memcpy Device-to-Device]
1004000,1000,3,64,1,1,128,1,1,32,,7,"void at::native::CUDAFunctor_add<float>(int, float)"
"""


def test_the_gpu_trace_has_a_window_and_so_an_idle_time(rules):
    found = nsys_text.parse(TRACE, name="x", source="x", rules=rules)
    assert (found.window_ms, found.busy_ms, found.idle_ms) == pytest.approx((0.005, 0.0035, 0.0015))
    assert [(row.short, row.grid) for row in found.kernels] == [
        ("flash_fwd_kernel", (8, 2, 8)),
        ("CUDAFunctor_add", (64, 1, 1)),
    ]
    (copy,) = found.copies
    assert (copy.operation, copy.total_mb, copy.total_ms) == ("[CUDA memcpy Device-to-Device]", 2.5, 0.0005)


SIZES = """Total (MB)  Count  Avg (MB)  Operation
----------  -----  --------  ----------------------------
     2.000      1     2.000  [CUDA memcpy Host-to-Device]

Time (%)  Total Time (us)  Count  Avg (us)  Min (us)  Max (us)  Operation
--------  ---------------  -----  --------  --------  --------  ----------------------------
   100.0            500.0      1     500.0     500.0     500.0  [CUDA memcpy Host-to-Device]
"""


def test_copies_by_time_and_by_size_are_one_row(rules):
    (row,) = nsys_text.parse(SIZES, name="x", source="x", rules=rules).copies
    assert (row.total_ms, row.total_mb, row.calls) == (0.5, 2.0, 1)


def test_a_trace_is_not_added_to_the_sums_of_the_same_capture(rules):
    both = CSV + "\n" + TRACE
    assert nsys_text.parse(both, name="x", source="x", rules=rules).kernel_ms == pytest.approx(0.003)


def test_tab_separated(rules):
    text = TRACE.replace(',"void at::native::CUDAFunctor_add<float>(int, float)"', ",x").replace(",", "\t")
    found = nsys_text.parse(text, name="x", source="x", rules=rules)
    assert found.window_ms == pytest.approx(0.005)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n-----  ----\n",
        "SKIPPED: report.sqlite does not contain CUDA kernel data.\n",
        " Time (%)  Total Time (ns)  Instances  Name\n --------  ---------------  ---------  ----\n",
    ],
)
def test_a_text_without_rows_is_refused(rules, text):
    with pytest.raises(RunFileError, match="holds no table with rows"):
        nsys_text.parse(text, name="x", source="x.txt", rules=rules)


def test_numbers_of_two_locales_are_refused(rules):
    with pytest.raises(RunFileError, match=r"x\.txt its numbers use both a point and a comma"):
        nsys_text.parse(CSV.replace("3000000,2", '"3,5",2'), name="x", source="x.txt", rules=rules)
