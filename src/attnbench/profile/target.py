"""The profiled process: `python -m attnbench.profile.target JOB ANSWER TRACE`, started by a profiler.

It opens the backends of one case through the same interface as a measurement and warms each up.  Then, inside the
capture window, it launches each in ranges named ``backend/case``.  Setup, compilation and warm-up stay outside the
window.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attnbench.backends.base import Launch, Machine
from attnbench.backends.registry import is_shipped, resolve
from attnbench.errors import Unavailable, Unsupported, refusal
from attnbench.machine.device import Device
from attnbench.measure.stage import synchronize
from attnbench.profile.job import Answer, Job, read_job, write
from attnbench.profile.torch_trace import OURS
from attnbench.worker.outcome import reason_of
from attnbench.workloads.base import Case, Inputs, load_workload

NOTHING_RAN = 3
TRACE_NAME = re.compile(r',\s*"traceName":\s*"(?:[^"\\]|\\.)*"(?=\s*}\s*$)')
"""The last field of torch's trace, a path of this machine."""
END = 1 << 14
"""Number of characters at the end that are searched for it."""

Mark = Callable[[str], AbstractContextManager[Any]]


def main(job_file: str, answer_file: str, trace_file: str) -> int:
    """Run the job; return 0, or 3 if no backend could be launched."""
    job = read_job(Path(job_file))
    answer = carry_out(job, Path(trace_file))
    write(answer, Path(answer_file))
    return 0 if len(answer.reasons) < len(job.backends) else NOTHING_RAN


def carry_out(job: Job, trace: Path) -> Answer:
    """Open and warm up the backends, then launch them in the window.

    Args:
        job: the launches.
        trace: path of torch.profiler's trace, for marks ``torch``.

    Returns:
        Why backends were not launched.
    """
    import torch

    workload = load_workload(job.workload)
    case = workload.case(job.case)
    device = Device.parse(job.device).named()
    machine = _machine(device)
    reasons: dict[str, str] = {}
    with ExitStack() as sessions:
        inputs = workload.inputs(case, seed=job.seed, kind=job.input, device=job.device)
        launches: dict[str, Launch] = {}
        for name in job.backends:
            try:
                launches[name] = _opened(name, job, case, inputs, machine, sessions)
            except (Unavailable, Unsupported) as why:
                reasons[name] = str(why)
            except Exception as error:  # catches everything: the other backends are still profiled
                reasons[name] = reason_of(error, "warm-up")
        if launches:
            _launch_all(job, case.mode, launches, trace)
    return Answer(reasons=reasons, gpu=device.name, torch=str(torch.__version__))


def _opened(name: str, job: Job, case: Case, inputs: Inputs, machine: Machine, sessions: ExitStack) -> Launch:
    """Return the launch of a backend, warmed up; its session is closed with the others."""
    backend = resolve(name, case, files=() if is_shipped(name) else job.files)
    if machine.device not in backend.devices:
        raise Unsupported(f"{name}: device={machine.device} is not supported; {' and '.join(backend.devices)}")
    backend.probe()
    backend.check(case, machine)
    with ExitStack() as closing:
        launch = closing.enter_context(backend.session(case, inputs))
        if case.mode != "fwd":
            launch.forward()  # a backward alone needs a forward before it
        call = launch.call(case.mode)
        for _ in range(job.warmup):
            if launch.reset:
                launch.reset()
            call()
        synchronize(Device.parse(job.device))
        if job.whole:
            if launch.at_length is None:
                wrong = "has nothing that follows its launches"
                raise Unsupported(refusal(name, "--whole", "yes", wrong, "a suite of the workload video"))
            launch.at_length()  # single steps do not warm up the decoder
            synchronize(Device.parse(job.device))
        sessions.push(closing.pop_all())
    return launch


def _launch_all(job: Job, mode: str, launches: dict[str, Launch], trace: Path) -> None:
    with _window(job, trace) as mark:
        for name, launch in launches.items():
            call = launch.call(mode)
            if launch.marked:
                launch.marked(mark)
            for _ in range(job.launches):
                if launch.reset:
                    launch.reset()
                with mark(f"{name}/{job.case_id}"):
                    (launch.at_length if job.whole and launch.at_length else call)()
            synchronize(Device.parse(job.device))


@contextmanager
def _window(job: Job, trace: Path) -> Iterator[Mark]:
    """Open the profiler's window; yield the function that marks a range in it."""
    if job.marks == "nvtx":
        yield from _nvtx_window(Device.parse(job.device))
    elif job.marks == "torch":
        yield from _torch_window(job, trace)
    else:
        yield _unmarked


def _nvtx_window(device: Device) -> Iterator[Mark]:
    import torch

    runtime: Any = torch.cuda.cudart()
    synchronize(device)
    runtime.cudaProfilerStart()
    try:
        yield torch.cuda.nvtx.range
    finally:
        synchronize(device)
        runtime.cudaProfilerStop()


def _torch_window(job: Job, trace: Path) -> Iterator[Mark]:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * Device.parse(job.device).on_gpu
    with profile(activities=kinds, acc_events=True) as profiler:
        yield record_function
        synchronize(Device.parse(job.device))
    profiler.export_chrome_trace(str(trace))
    _sign(trace, str(torch.__version__))


def _sign(trace: Path, version: str) -> None:
    """Mark the trace as attnbench's and add the version of torch, which torch omits."""
    import json

    text = trace.read_text(encoding="utf-8")
    # As text: parsing and writing JSON takes half a minute for a trace of a whole generation.
    text = text[:-END] + TRACE_NAME.sub("", text[-END:])
    trace.write_text(text.replace("{", f'{{"{OURS}": {json.dumps({"torch": version})},', 1), encoding="utf-8")


@contextmanager
def _unmarked(name: str) -> Iterator[None]:
    yield


def _machine(device: Device) -> Machine:
    if not device.on_gpu:
        return Machine("cpu")
    import torch

    torch.cuda.set_device(str(device))
    properties = torch.cuda.get_device_properties(str(device))
    return Machine("cuda", (properties.major, properties.minor), properties.total_memory)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
