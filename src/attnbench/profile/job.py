"""The job of the profiled process and its answer, as JSON files because a profiler runs between the two processes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.record import from_dict, to_dict

MARKS = ("nvtx", "torch", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One case and the backends to launch on it, one after another, in one process."""

    workload: str
    case: Mapping[str, Any]
    case_id: str
    backends: tuple[str, ...]
    "selectors"
    files: tuple[str, ...] = ()
    "absolute paths of the --backends files"
    device: str
    input: str = "normal"
    seed: int = 0
    warmup: int = 3
    "launches of each backend before the window"
    launches: int = 1
    "of each backend in the window"
    whole: bool = False
    "launch the work that follows the samples, such as the generation of a video, instead of single launches"
    marks: str
    "nvtx (ranges and the capture window of ncu and nsys), torch (torch.profiler in the process), none"

    @property
    def title(self) -> str:
        """Title for messages."""
        return f"{', '.join(self.backends)} on {self.case_id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Outcome of a job."""

    reasons: Mapping[str, str]
    "why a backend was not launched, by selector; all others were launched"
    gpu: str | None = None
    torch: str | None = None


def write(data: Job | Answer, path: Path) -> Path:
    """Write a job or an answer, and return the path."""
    path.write_text(json.dumps(to_dict(data)), encoding="utf-8")
    return path


def read_job(path: Path) -> Job:
    """Return the job that `write` wrote."""
    return from_dict(Job, json.loads(path.read_text(encoding="utf-8")), "job")


def read_answer(path: Path) -> Answer | None:
    """Return the answer; None if the process ended before writing one."""
    try:
        return from_dict(Answer, json.loads(path.read_text(encoding="utf-8")), "answer")
    except (OSError, ValueError):
        return None


def file_name(backends: Sequence[str], case_id: str | None = None) -> str:
    """Return ``profile_{name}``, named after the backends, and after the case if one folder has captures of several."""
    words = (re.sub(r"[^\w.-]+", "_", word).strip("_") for word in (*backends, case_id or ""))
    return "_".join(["profile", *filter(None, words)])
