"""One backend of a group, from its first step to its record."""

from __future__ import annotations

import fcntl
import operator
import re
import termios
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from attnbench.backends.base import Backend, Launch
from attnbench.backends.registry import all_backends, is_shipped, parse_selector, resolve
from attnbench.check.globals import GlobalState
from attnbench.errors import Unavailable, Unsupported, UsageError, refusal
from attnbench.machine.device import Device
from attnbench.measure.subject import Misleading
from attnbench.measure.timer import Untimed
from attnbench.record import Record
from attnbench.worker.activity import Activity, ActivityPage
from attnbench.worker.outcome import RecordBuilder
from attnbench.worker.supervisor import KEPT
from attnbench.workloads.base import Case

MIB = 2**20

WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")
MOST_FLOPS = 10**24
"""Largest count accepted: a day of a million cards."""


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One backend of the group and its state so far."""

    index: int
    "in the request, and on the activity page"
    backend: Backend
    builder: RecordBuilder
    launch: Launch | None = None
    closing: ExitStack = field(default_factory=ExitStack)
    setup_ms: float = 0.0
    first_call_ms: float = 0.0
    held_bytes: int = 0
    "memory allocated on the device before the session: harness, inputs, other sessions"
    session_bytes: int = 0
    "memory that the session keeps on the device between calls: its own inputs, workspaces, plans"
    by_itself: bool = False
    "must be measured with no other session open"
    repeated: bool = False
    "the baseline again, beside the backends of a later part: how it ends here does not change its record"
    record: Record | None = None
    "the last one written"
    ended: bool = False
    "has a record that is not passed"

    def again(self, *, by_itself: bool = False, repeated: bool = False) -> Entry:
        """Return an entry of the same backend that is not open yet."""
        return Entry(
            index=self.index, backend=self.backend, builder=self.builder, by_itself=by_itself, repeated=repeated
        )

    def prestart(self, case: Case, device: Device) -> None:
        """Let the backend start what its session needs; the session meets errors again, and they are reported there."""
        import torch

        with suppress(Exception):
            self.backend.prestart(case, torch.device(str(device)))

    def run_once(self, mode: str) -> None:
        """Run the forward, and the backward if the mode includes it."""
        launch = self.launch
        assert launch is not None
        if launch.reset:
            launch.reset()
        launch.forward()
        if mode != "fwd":
            launch.call("bwd")()


def guilty_of(error: Exception, activity: Activity, sampled: Sequence[Entry]) -> Entry | None:
    """Return the entry that caused an exception during sampling; None if it may be the harness itself."""
    if isinstance(error, Untimed | Misleading):
        return next((entry for entry in sampled if entry.builder.name == error.subject), None)
    if isinstance(error, Unavailable | UsageError):
        return None
    return next((entry for entry in sampled if entry.index == activity.index), None)


def notes_of(name: str, launch: Launch) -> tuple[str, ...]:
    """Return the notes that a launch gives.

    Raises:
        UsageError: they are not strings.
    """
    if not isinstance(launch.notes, tuple | list) or not all(isinstance(note, str) for note in launch.notes):
        raise UsageError(refusal(name, "notes", repr(launch.notes)[:80], "is not text", "a tuple of str"))
    return tuple(launch.notes)


def executed_flops(name: str, launch: Launch) -> int | None:
    """Return the FLOPs that a launch says it executes.

    Raises:
        UsageError: the value is not a count.
    """
    value = launch.executed_flops
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if isinstance(value, bool) or not 0 <= count <= MOST_FLOPS:
        raise UsageError(
            refusal(
                name,
                "executed_flops",
                repr(value)[:80],
                "is not a count",
                f"None or a whole number, 0 to {MOST_FLOPS:g}",
            )
        )
    return count


def counters(name: str, found: Mapping[str, float]) -> dict[str, float]:
    """Return a launch's counters by name.

    Raises:
        UsageError: a name is not a word, or a value is not a finite number.
    """
    if not isinstance(found, Mapping):
        raise UsageError(refusal(name, "counters", repr(found)[:80], "is not a mapping", "names and numbers"))
    for key, value in found.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_FLOPS
        if not (isinstance(key, str) and WORD.fullmatch(key)) or not number:
            raise UsageError(
                refusal(
                    name,
                    f"counters[{repr(key)[:40]}]",
                    repr(value)[:80],
                    "is not a count",
                    "a name of lower-case letters, and a number",
                )
            )
    return {key: float(value) for key, value in found.items()}


@contextmanager
def globals_kept(
    builders: Sequence[RecordBuilder], words: str = "", *, but: frozenset[str] = frozenset()
) -> Iterator[GlobalState]:
    """Restore settings that the block leaves changed, except those in `but`, and note them in each of the builders.

    Yields the settings before the block.
    """
    before = GlobalState.capture()
    try:
        yield before
    finally:
        notes = [words + note for note in before.restore(but=but)]
        for builder in builders:
            builder.note(*notes)


@contextmanager
def log_watched(page: ActivityPage, builders: Sequence[RecordBuilder], words: str = "") -> Iterator[None]:
    """Add a note to each of the builders if the block prints more than the log keeps."""
    before = _printed(page)
    try:
        yield
    finally:
        if (count := _printed(page) - before) > KEPT:
            note = f"{words}{count / MIB:.1f} MiB were printed; the log keeps the last {KEPT >> 10} KiB"
            for builder in builders:
                builder.note(note)


def _printed(page: ActivityPage) -> int:
    """Return the bytes printed, including those still in the pipe to the supervisor."""
    waiting = array("i", [0])
    with suppress(OSError):  # a backend may have closed it
        fcntl.ioctl(1, termios.FIONREAD, waiting)
    return page.printed() + waiting[0]


def backend_for(selector: str, case: Case, files: Sequence[str]) -> Backend:
    """Return the backend that a selector of the plan names.

    Raises:
        Unsupported: this case has no such configuration; other cases of the run may have it.
        UsageError: a file can no longer be imported.
    """
    name, short = parse_selector(selector)
    # Importing a file can have any side effect, so only its own backends import it.
    chosen = () if is_shipped(selector) else files
    if short is None or name not in all_backends(chosen):
        return resolve(selector, case, files=chosen)
    try:
        return resolve(selector, case, files=chosen)
    except UsageError as why:
        raise Unsupported(str(why)) from None
