"""One backend of a group on its way to a record."""

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
"""A day of a million cards."""


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One backend of the group and what is known of it so far."""

    index: int
    "in the request; what the activity page says"
    backend: Backend
    builder: RecordBuilder
    launch: Launch | None = None
    closing: ExitStack = field(default_factory=ExitStack)
    setup_ms: float = 0.0
    first_call_ms: float = 0.0
    held_bytes: int = 0
    "what the device held before the session: the harness, the inputs, other sessions"
    session_bytes: int = 0
    "what the session holds on the device between calls: its own inputs, workspaces, plans"
    by_itself: bool = False
    "to be measured with nobody else open"
    repeated: bool = False
    "the baseline once more, beside those of a later part: how it ends here is not its record"
    record: Record | None = None
    "the last one"
    ended: bool = False
    "with a record that is not passed"

    def again(self, *, by_itself: bool = False, repeated: bool = False) -> Entry:
        """The same backend, not open yet."""
        return Entry(
            index=self.index, backend=self.backend, builder=self.builder, by_itself=by_itself, repeated=repeated
        )

    def run_once(self, mode: str) -> None:
        """Forward, and backward where the mode asks for it."""
        launch = self.launch
        assert launch is not None
        if launch.reset:
            launch.reset()
        launch.forward()
        if mode != "fwd":
            launch.call("bwd")()


def guilty_of(error: Exception, activity: Activity, sampled: Sequence[Entry]) -> Entry | None:
    """Whose doing an exception during sampling was; None for the harness's own."""
    if isinstance(error, Untimed | Misleading):
        return next((entry for entry in sampled if entry.builder.name == error.subject), None)
    if isinstance(error, Unavailable | UsageError):
        return None
    return next((entry for entry in sampled if entry.index == activity.index), None)


def notes_of(name: str, launch: Launch) -> tuple[str, ...]:
    """The notes that a launch hands over.

    Raises:
        UsageError: they are not texts.
    """
    if not isinstance(launch.notes, tuple | list) or not all(isinstance(note, str) for note in launch.notes):
        raise UsageError(refusal(name, "notes", repr(launch.notes)[:80], "is not text", "a tuple of str"))
    return tuple(launch.notes)


def executed_flops(name: str, launch: Launch) -> int | None:
    """What a launch says that it executes.

    Raises:
        UsageError: no count.
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
                name, "executed_flops", repr(value)[:80], "is no count", f"None or a whole number, 0 to {MOST_FLOPS:g}"
            )
        )
    return count


def counters(name: str, found: Mapping[str, float]) -> dict[str, float]:
    """What a launch counts, by name.

    Raises:
        UsageError: a name that is no word, or what is no finite number.
    """
    if not isinstance(found, Mapping):
        raise UsageError(refusal(name, "counters", repr(found)[:80], "is no mapping", "names and numbers"))
    for key, value in found.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_FLOPS
        if not (isinstance(key, str) and WORD.fullmatch(key)) or not number:
            raise UsageError(
                refusal(
                    name,
                    f"counters[{repr(key)[:40]}]",
                    repr(value)[:80],
                    "is no count",
                    "a name of small letters, and a number",
                )
            )
    return {key: float(value) for key, value in found.items()}


@contextmanager
def globals_kept(
    builders: Sequence[RecordBuilder], words: str = "", *, but: frozenset[str] = frozenset()
) -> Iterator[GlobalState]:
    """Put settings back that the block leaves changed, `but` some, with a note for each of the builders.

    Gives the settings as they were before.
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
    """A note for each of the builders where the block prints more than is kept of the log."""
    before = _printed(page)
    try:
        yield
    finally:
        if (count := _printed(page) - before) > KEPT:
            note = f"{words}{count / MIB:.1f} MiB were printed; of the log the last {KEPT >> 10} KiB are kept"
            for builder in builders:
                builder.note(note)


def _printed(page: ActivityPage) -> int:
    """Bytes printed, those on their way to the supervisor included."""
    waiting = array("i", [0])
    with suppress(OSError):  # a backend may have closed it
        fcntl.ioctl(1, termios.FIONREAD, waiting)
    return page.printed() + waiting[0]


def backend_for(selector: str, case: Case, files: Sequence[str]) -> Backend:
    """The backend that a selector of the plan names.

    Raises:
        Unsupported: this case has no such configuration; others of the run may.
        UsageError: a file does not import any more.
    """
    name, short = parse_selector(selector)
    # A file may do anything when it is imported: only its own backends are to suffer for it.
    chosen = () if is_shipped(selector) else files
    if short is None or name not in all_backends(chosen):
        return resolve(selector, case, files=chosen)
    try:
        return resolve(selector, case, files=chosen)
    except UsageError as why:
        raise Unsupported(str(why)) from None
