"""The frozen record into which the output of every profiler is parsed.

Times are milliseconds.  A value that the tool does not report is `None`, never 0.  Counters carry the names of
`counters.toml`, categories those of `categories.toml`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.errors import RunFileError, refusal
from attnbench.record import from_dict, to_dict
from attnbench.store.parsing import LARGEST, parse
from attnbench.text import Spelled

FORMAT = "attnbench-capture 1"
CPU = "CPU"
"""Device of a capture without GPU activity, which holds torch's CPU operators."""


class ToolData(Spelled):
    """Data reported by a tool: texts are `spelled`, and a non-finite figure (ncu writes nan) becomes None."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Replace such figures by None."""
        Spelled.__post_init__(self)
        for one in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, one.name)
            if isinstance(value, float) and not abs(value) < LARGEST:
                object.__setattr__(self, one.name, None)
            if isinstance(value, Mapping) and not all(item is None or abs(item) < LARGEST for item in value.values()):
                known = {name: item if item is not None and abs(item) < LARGEST else None
                         for name, item in value.items()}  # fmt: skip
                object.__setattr__(self, one.name, known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice(ToolData):
    """One remark of ncu's own rules on a kernel."""

    rule: str
    text: str
    speedup_percent: float | None = None
    "gain that the rule estimates; most rules estimate none"
    scope: str | None = None
    "global: the gain is of the kernel's time; local: only of the part the rule looks at"

    @property
    def promise(self) -> tuple[bool, bool, float]:
        """Sort key, highest promise first: gains of the kernel, then of a part of it, then no estimate."""
        return (self.speedup_percent is None, self.scope == "local", -(self.speedup_percent or 0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow(ToolData):
    """All launches of one kernel within one range of one capture."""

    name: str
    "as the tool writes it, shortened if the tool shortens it"
    short: str
    category: str
    backend: str | None = None
    case: str | None = None
    range: str | None = None
    "innermost NVTX or profiler range"
    within: tuple[str, ...] = ()
    "the ranges around it, outermost first"
    calls: int
    total_ms: float | None
    mean_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    grid: tuple[int, ...] | None = None
    "blocks in x, y, z; None if launches differ"
    block: tuple[int, ...] | None = None
    "threads in x, y, z"
    counters: Mapping[str, float | None] = field(default_factory=dict)
    "mean over the launches"
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRow(ToolData):
    """All instances of one range."""

    name: str
    calls: int
    host_ms: float | None = None
    "CPU time in the range, summed over instances"
    gpu_ms: float | None = None
    "from the first start to the last end of the work launched in it, summed over instances"
    busy_ms: float | None = None
    "part of that time in which at least one kernel or copy ran"


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyRow(ToolData):
    """Copies and fills of one kind, executed by the copy engines."""

    operation: str
    calls: int
    total_ms: float | None = None
    mean_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    total_mb: float | None = None
    "10^6 bytes, as in nsys"


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRow(ToolData):
    """Calls of one function of the CUDA API: CPU time, never to be added to GPU time."""

    name: str
    calls: int
    total_ms: float | None = None
    mean_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture(ToolData):
    """One capture of one tool."""

    tool: str
    "ncu, nsys or torch"
    tool_version: str | None = None
    name: str
    "heading of its column: the backend, or the file's name without profile_"
    source: str
    "file name without its folder"
    command: str | None = None
    device: str | None = None
    "name of the GPU, or CPU"
    launches: int | None = None
    "of each backend in the window; None for a capture that attnbench did not take"
    kernels: tuple[KernelRow, ...] = ()
    ranges: tuple[RangeRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    api: tuple[ApiRow, ...] = ()
    window_ms: float | None = None
    "from the first start to the last end on the GPU; None if the tool reports sums only"
    busy_ms: float | None = None
    "part of the window in which at least one kernel or copy ran"
    notes: tuple[str, ...] = ()

    @property
    def kernel_ms(self) -> float | None:
        """Sum of all kernel times; None without kernels."""
        times = [row.total_ms for row in self.kernels if row.total_ms is not None]
        return sum(times) if times else None

    @property
    def idle_ms(self) -> float | None:
        """Part of the window in which nothing ran."""
        return None if self.window_ms is None or self.busy_ms is None else self.window_ms - self.busy_ms

    def of(self, backend: str | None, case: str | None) -> Capture:
        """Return the capture with this backend and case in each row whose range does not name them."""
        rows = (row if row.backend else dataclasses.replace(row, backend=backend, case=case) for row in self.kernels)
        return dataclasses.replace(self, kernels=tuple(rows))


def split_range(name: str | None) -> tuple[str | None, str | None]:
    """Return the backend and case of a range that our target named ``backend/case``; (None, None) for any other."""
    backend, slash, case = (name or "").rpartition("/")
    ours = slash and backend and case.endswith(("-fwd", "-bwd", "-fwd-bwd")) and " " not in case
    return (backend, case) if ours else (None, None)


def dumps(captures: tuple[Capture, ...]) -> str:
    """Return the captures as JSON text, which `loads` reads back."""
    return json.dumps({"format": FORMAT, "captures": [to_dict(one) for one in captures]}, indent=1) + "\n"


def loads(text: str, who: str) -> tuple[Capture, ...]:
    """Read what `dumps` wrote.

    Raises:
        RunFileError: it is truncated, newer than this version, or not written by attnbench.
    """
    try:
        data = parse(text, who, FORMAT)
    except RunFileError:
        raise RunFileError(
            refusal(
                who,
                "file",
                Path(who).name,
                "is cut short or is no JSON",
                "a capture written by attnbench profile --json",
            )
        ) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("captures"), list):
        raise RunFileError(
            refusal(who, "format", data.get("format") if isinstance(data, dict) else "none", "is not known", FORMAT)
        )
    return tuple(from_dict(Capture, one, f"{who}: captures[{number}]") for number, one in enumerate(data["captures"]))
