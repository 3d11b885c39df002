"""What every profiler's output is turned into: one capture, frozen, whatever tool took it.

Times are milliseconds.  What a tool does not say is `None`, never 0.  Counters carry the names of
`counters.toml`; categories those of `categories.toml`.
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
"""Device of a capture of torch's operators: there was no GPU activity."""


class Told(Spelled):
    """What a tool said: texts are `spelled`, and a figure that is no number (ncu writes nan) is not known."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Put None in the place of such figures."""
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
class Advice(Told):
    """One remark of ncu's own rules on a kernel."""

    rule: str
    text: str
    speedup_percent: float | None = None
    "what the rule estimates could be gained; most rules estimate nothing"
    scope: str | None = None
    "global: the gain is of the kernel's time; local: of what the rule looks at, taken alone"

    @property
    def promise(self) -> tuple[bool, bool, float]:
        """Sorts what promises most first: gains of the kernel, then of a part of it, then no estimate."""
        return (self.speedup_percent is None, self.scope == "local", -(self.speedup_percent or 0.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow(Told):
    """All launches of one kernel within one range of one capture."""

    name: str
    "as the tool writes it, cut where the tool cut it"
    short: str
    category: str
    backend: str | None = None
    case: str | None = None
    range: str | None = None
    "innermost NVTX or profiler range"
    within: tuple[str, ...] = ()
    "the ranges around that one, the outermost first"
    calls: int
    total_ms: float | None
    mean_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    grid: tuple[int, ...] | None = None
    "blocks in x, y, z; None where launches differ"
    block: tuple[int, ...] | None = None
    "threads in x, y, z"
    counters: Mapping[str, float | None] = field(default_factory=dict)
    "mean over the launches"
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeRow(Told):
    """All instances of one range."""

    name: str
    calls: int
    host_ms: float | None = None
    "time the CPU was in it, summed over instances"
    gpu_ms: float | None = None
    "from the first start to the last end of what was launched in it, summed over instances"
    busy_ms: float | None = None
    "of that the time at least one kernel or copy ran"


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyRow(Told):
    """Copies and fills of one kind, done by the copy engines."""

    operation: str
    calls: int
    total_ms: float | None = None
    mean_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    total_mb: float | None = None
    "10^6 bytes, as nsys counts"


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiRow(Told):
    """Calls of one function of the CUDA API: time of the CPU, never to be added to the GPU's."""

    name: str
    calls: int
    total_ms: float | None = None
    mean_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture(Told):
    """One capture of one tool."""

    tool: str
    "ncu, nsys or torch"
    tool_version: str | None = None
    name: str
    "what its column is called: the backend, or the file's name without profile_"
    source: str
    "file name, without its folder"
    command: str | None = None
    device: str | None = None
    "name of the card, or CPU"
    launches: int | None = None
    "of each backend in the window; None of a capture taken by others"
    kernels: tuple[KernelRow, ...] = ()
    ranges: tuple[RangeRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    api: tuple[ApiRow, ...] = ()
    window_ms: float | None = None
    "from the first start to the last end on the GPU; None where the tool gives sums only"
    busy_ms: float | None = None
    "of the window the time at least one kernel or copy ran"
    notes: tuple[str, ...] = ()

    @property
    def kernel_ms(self) -> float | None:
        """All kernel time; None where there is none."""
        times = [row.total_ms for row in self.kernels if row.total_ms is not None]
        return sum(times) if times else None

    @property
    def idle_ms(self) -> float | None:
        """Of the window the time nothing ran."""
        return None if self.window_ms is None or self.busy_ms is None else self.window_ms - self.busy_ms

    def of(self, backend: str | None, case: str | None) -> Capture:
        """The capture with backend and case where no range says them."""
        rows = (row if row.backend else dataclasses.replace(row, backend=backend, case=case) for row in self.kernels)
        return dataclasses.replace(self, kernels=tuple(rows))


def split_range(name: str | None) -> tuple[str | None, str | None]:
    """Backend and case of a range that our target named ``backend/case``; (None, None) of any other."""
    backend, slash, case = (name or "").rpartition("/")
    ours = slash and backend and case.endswith(("-fwd", "-bwd", "-fwd-bwd")) and " " not in case
    return (backend, case) if ours else (None, None)


def dumps(captures: tuple[Capture, ...]) -> str:
    """Captures as JSON text, which `loads` reads back."""
    return json.dumps({"format": FORMAT, "captures": [to_dict(one) for one in captures]}, indent=1) + "\n"


def loads(text: str, who: str) -> tuple[Capture, ...]:
    """Read what `dumps` wrote.

    Raises:
        RunFileError: it is cut short, newer or not ours.
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
