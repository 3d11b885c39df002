"""Synthetic captures: after the formats of the tools, with times and names chosen so that sums are plain to see.

No tool wrote them.  Real ones stand in captures/, with a README that says where from.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

CAPTURES = Path(__file__).with_name("captures")
"""Real ones."""

FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t>, false, true>(pytorch_flash::Flash_fwd_params)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda(float)#1}, std::array<char*, 2ul> >(int)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int)"
)
CASE = "b2-s1024-h8-d64-fp16-fwd"
RANGE = f"sdpa-flash/{CASE}"

STRINGS = ["cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", FLASH, COPY, ADD, RANGE, "flash_fwd_kernel", "warm"]
PROCESS, MAIN, AUTOGRAD = 7 << 24, (7 << 24) + 1, (7 << 24) + 2


def nsys_sqlite(path, *, graphs=0, tables=("kernel", "memcpy", "memset", "runtime", "nvtx")):
    """An export: two launches in our range (flash 3 us, copy 1 us each), an add outside, a copy, a fill.

    ns:  range 1000-2000 launches flash (10000-13000) and copy (13000-14000)
         range 2000-3000 launches flash (15000-18000) and copy (18000-19000), the copy from another thread
         add 20000-22000 in no range, memcpy 19000-19500, memset 19200-20000
    """
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(STRINGS))
    name = {text: index for index, text in enumerate(STRINGS)}
    database.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
    database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200')")
    if "kernel" in tables:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, "
            "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName "
            "INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ "
            "INTEGER)"
        )
        for start, end, correlation, kernel, grid in (
            (10000, 13000, 1, FLASH, (8, 2, 8)),
            (13000, 14000, 2, COPY, (64, 1, 1)),
            (15000, 18000, 3, FLASH, (8, 2, 8)),
            (18000, 19000, 4, COPY, (32, 1, 1)),
            (20000, 22000, 5, ADD, (16, 1, 1)),
        ):
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,7,?,?,?,?,?,?,?,128,1,1)",
                (start, end, correlation, PROCESS, name[kernel], name["flash_fwd_kernel"], *grid),
            )
    if "memcpy" in tables:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, correlationId INTEGER, "
            "globalPid INTEGER, bytes INTEGER, copyKind INTEGER)"
        )
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (19000, 19500, 6, {PROCESS}, 2000000, 1)")
    if "memset" in tables:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, correlationId INTEGER, "
            "globalPid INTEGER, bytes INTEGER, value INTEGER)"
        )
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (19200, 20000, 7, {PROCESS}, 4096, 0)")
    if "runtime" in tables:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, "
            "correlationId INTEGER, nameId INTEGER)"
        )
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)",
            [
                (1100, 1200, MAIN, 1, 0),
                (1300, 1400, MAIN, 2, 0),
                (2100, 2200, MAIN, 3, 0),
                (2300, 2500, AUTOGRAD, 4, 0),
                (3500, 3600, MAIN, 5, 0),
                (3700, 4700, MAIN, 6, 1),
                (4800, 4900, MAIN, 7, 1),
            ],
        )
    if "nvtx" in tables:
        database.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId "
            "INTEGER, globalTid INTEGER)"
        )
        database.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?)",
            [
                (1000, 2000, 59, None, name[RANGE], MAIN),
                (2000, 3000, 59, RANGE, None, MAIN),
                (1050, 1150, 59, None, name["warm"], MAIN),
                (500, None, 34, "a mark", None, MAIN),
            ],
        )
    if graphs:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, graphId INTEGER)")
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,1)", [(1, 2)] * graphs)
    database.commit()
    database.close()
    return path


# ── ncu ────────────────────────────────────────────────────────────────────────────────────────────

IDENTITY = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
]
HOPPER = {
    "device__attribute_display_name": ("", "NVIDIA H200"),
    "dram__bytes_read.sum": ("Mbyte", "12.50"),
    "dram__bytes_write.sum": ("Kbyte", "4,500.00"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "21.30"),
    "gpu__time_duration.sum": ("us", "104.99"),
    "launch__registers_per_thread": ("register/thread", "168"),
    "launch__occupancy_limit_registers": ("block", "3"),
    "lts__t_sector_hit_rate.pct": ("%", "88.80"),
    "sm__cycles_elapsed.max": ("cycle", "188,412"),
    "sm__cycles_elapsed.avg.per_second": ("Ghz", "1.79"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "18.75"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "71.02"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "68.40"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "17.90"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "1.25"),
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio": ("inst", "2.40"),
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1.00"),
    "sm__inst_executed.avg.per_cycle_active": ("inst/cycle", "n/a"),
}


def ncu_raw(metrics=None, *, launches=None, noise=True):
    """The raw page: by default two launches of flash in our range and one copy in none."""
    metrics = HOPPER if metrics is None else metrics
    launches = launches or [
        (FLASH, RANGE, {}),
        (FLASH, RANGE, {"gpu__time_duration.sum": "105.01"}),
        (COPY, None, {"gpu__time_duration.sum": "3.20"}),
    ]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*IDENTITY, *metrics])
    writer.writerow([""] * len(IDENTITY) + [unit for unit, _ in metrics.values()])
    for number, (kernel, where, other) in enumerate(launches):
        values = (other.get(name, value) for name, (_, value) in metrics.items())
        writer.writerow([*_identity(number, kernel, where), *values])
    before = "==PROF== Connected to process 4711 (/usr/bin/python3.12)\nwarming up, 3 times\n" if noise else ""
    after = "==PROF== Disconnected from process 4711\n" if noise else ""
    return before + out.getvalue() + after


def ncu_details():
    """The details page of the same launches: labels, and what rules say."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(
        [
            *IDENTITY,
            "Section Name",
            "Metric Name",
            "Metric Unit",
            "Metric Value",
            "Rule Name",
            "Rule Type",
            "Rule Description",
            "Estimated Speedup Type",
            "Estimated Speedup",
        ]
    )
    lines = [
        ("GPU Speed Of Light Throughput", "Duration", "us", "104.99", "", "", "", "", ""),
        ("GPU Speed Of Light Throughput", "Elapsed Cycles", "cycle", "188,412", "", "", "", "", ""),
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "24.00", "", "", "", "", ""),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "162.00", "", "", "", "", ""),
        ("Launch Statistics", "Registers Per Thread", "register/thread", "168", "", "", "", "", ""),
        (
            "Occupancy",
            "",
            "",
            "",
            "TheoreticalOccupancy",
            "OPT",
            'The 3.00 theoretical warps per scheduler are below the maximum of 16, "limited" by registers.',
            "local",
            "31.6",
        ),
        ("GPU Speed Of Light Throughput", "", "", "", "SOLBottleneck", "INF", "Compute is well used.", "", ""),
    ]
    for line in lines:
        writer.writerow([*_identity(0, FLASH, RANGE), *line])
    return out.getvalue()


def _identity(number, kernel, where):
    ranges = f'4711  "<default domain>:{where}:none:none:none:none:none:none"' if where else ""
    return [
        str(number),
        "4711",
        "python3.12",
        "127.0.0.1",
        ranges,
        "",
        kernel,
        "1",
        "7",
        "(128, 1, 1)",
        "(8, 2, 8)",
        "0",
        "9.0",
    ]


# ── torch.profiler ─────────────────────────────────────────────────────────────────────────────────


def torch_trace():
    """A Chrome trace as torch 2.11 exports it: flash twice in our range, a copy by the copy engine."""

    def event(kind, name, start, length, thread, **args):
        return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": args}

    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "attnbench": {"torch": "2.11.0"},
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
            event("user_annotation", RANGE, 100.0, 50.0, 11),
            event("user_annotation", RANGE, 200.0, 50.0, 11),
            event("cpu_op", "aten::scaled_dot_product_attention", 105.0, 40.0, 11),
            event("cuda_runtime", "cudaLaunchKernel", 110.0, 5.0, 11, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", 210.0, 7.0, 11, correlation=2),
            event("cuda_driver", "cuLaunchKernel", 220.0, 4.0, 12, correlation=3),
            event("gpu_user_annotation", RANGE, 300.0, 40.0, 7),
            event("kernel", FLASH, 300.0, 40.0, 7, correlation=1, grid=[8, 2, 8], block=[128, 1, 1], stream=7),
            event("kernel", FLASH, 350.0, 44.0, 7, correlation=2, grid=[8, 2, 8], block=[128, 1, 1], stream=7),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 390.0, 10.0, 7, correlation=3, bytes=4096),
        ],
    }


def write_trace(path, data=None):
    path.write_text(json.dumps(torch_trace() if data is None else data))
    return path
