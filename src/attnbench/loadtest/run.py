"""Runs loads: an engine and its users served at a rate, with LoadGen's schedule or ours."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.errors import AttnbenchError, Unavailable
from attnbench.loadtest import gaps, loadgen_files
from attnbench.loadtest.generator import Generator, by_loadgen, scheduled
from attnbench.loadtest.issuing.loadgen import SCHEDULE_SEED, Settings
from attnbench.loadtest.labels import Judged
from attnbench.loadtest.ledger import Ledger
from attnbench.loadtest.loadgen_rate import rate_for_loadgen
from attnbench.loadtest.pauses import Collections, first_uses, old_objects_left_alone, pauses
from attnbench.loadtest.points import Schedule, by_schedule, point_of
from attnbench.loadtest.replay import Replay
from attnbench.loadtest.serving import Batching, Library, Refused, Server
from attnbench.loadtest.users import Users
from attnbench.store.load_file import Point, rate_text

if TYPE_CHECKING:
    from attnbench.loadtest.engine import ModelEngine
    from attnbench.models.hstu_ranking.request import Request

LOADGEN, MODULE = "mlcommons-loadgen", "mlperf_loadgen"
INSTALL = "pip install 'attnbench[load]'"
OURS = "attnbench"
PROBE_S, PROBE_VISITS = 1.0, 2
"Duration of the capacity estimate before a load, and its limit of visits per user."
NOT_CACHED = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)
"Shares of the histories that steps compute before a load, with each batch size: a kernel may be compiled for either."
IN_TIME = 0.99
"Share of all requests that must be answered within a limit."
EACH_SIZE, LARGER = 32, 1.125
"Batch sizes served before a load: each up to this, then each by this factor larger than the one before."
MOST_PROBES = 12
"Most loads of a search."
TELL_S = 2.0
"Time between two lines of progress."
OnProgress = Callable[[str], None]


def need_loadgen() -> str:
    """Return LoadGen's version.

    Raises:
        Unavailable: it is not installed; the message says how to install it.
    """
    if importlib.util.find_spec(MODULE) is None:
        raise Unavailable(f"load: {MODULE} is not installed; {INSTALL}; or --scenario gaps, which needs none")
    try:
        return importlib.metadata.version(LOADGEN)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@dataclass(slots=True)
class Bench:
    """The system under load, kept from one rate to the next with the state of its cache."""

    engine: ModelEngine
    users: Users | Replay
    batching: Batching
    slos_ms: tuple[float, ...]
    duration_s: float
    seed: int
    on_progress: OnProgress
    settings: Mapping[str, Any]
    "for the result: settings that depend on the users"
    capacity: float | None = None
    "requests a second, estimated"
    ending: KeyboardInterrupt | None = None
    "the signal that ended the last load before its time"
    _turn: int = 0
    "number of visits served without load"

    def warm_up(self) -> None:
        """Bring caches and compiled kernels to the state of a running load: each user's previous visit, and one more.

        Requests refused here are refused again under load, where they are counted.
        """
        most, told = self.batching.max_batch, Seldom(self.on_progress, "load: warming up")
        before = self.users.before() if self.engine.cache is not None else []
        for start in range(0, len(before), most):
            self._serve(before[start : start + most])
            told(f"histories of {min(start + most, len(before))} of {len(before)} users")
        batch: list[Request] = []
        largest = min(most, len(self.users))
        for size in sizes_up_to(largest):
            batch = self._visits(size)
            self._serve_in_part(batch)
            told(f"batches of {size}, up to {largest}")
        self.engine.capture_ahead(batch, batch=most)
        began, served = time.monotonic(), 0
        # Few visits of each user, so that histories stay close to what was drawn.
        while time.monotonic() - began < PROBE_S and served < PROBE_VISITS * len(self.users):
            batch = self._visits(most)
            self._serve(batch)
            served += len(batch)
        self.engine.settle()
        self.capacity = served / (time.monotonic() - began) if served else None
        if not self.users.returning:
            self._forget()

    def _forget(self) -> None:
        """Empty the cache, including host memory."""
        cache = self.engine.cache
        if cache is not None:
            for user in self.users.numbers():
                cache.truncate(user, 0)

    def _visits(self, count: int) -> list[Request]:
        found = {}
        for _ in range(count):
            one = self.users.take(self._turn % len(self.users))
            self._turn += 1
            if not isinstance(one, Refused):
                found[one.user] = one
        return list(found.values())

    def _serve_in_part(self, batch: list[Request]) -> None:
        """Serve a batch with all, some and none of its histories cached; afterwards they are, as after one step."""
        cache = self.engine.cache
        for share in NOT_CACHED if cache is not None else (1.0,):
            if cache is not None:
                for one in batch:
                    cache.truncate(one.user, round((1.0 - share) * cache.held(one.user)[0]))
            self._serve(batch)

    def _serve(self, batch: list[Request]) -> None:
        if not batch:
            return
        try:
            self.engine.launch(batch).wait()
        except Exception:  # warm-up: a request that cannot be served is refused, with the reason, under load
            half = len(batch) // 2
            for part in (batch[:half], batch[half:]) if half else ():
                self._serve(part)

    def notes(self) -> tuple[str, ...]:
        """Return what holds for all loads: memory too small on either side, the times of both ways of a host hit."""
        cache, graphs = self.engine.cache, self.engine.graphs
        found = []
        if graphs is not None and graphs.full:
            found.append(
                f"the GPU had no memory for more than {graphs.captured} graphs: other steps ran launch by launch; a smaller "
                f"--pool-share leaves more"
            )
        if cache is None:
            return tuple(found)
        pages, host_pages = cache.pool.shape[1], cache.host.shape[0]
        if 0 < host_pages <= pages:
            found.append(
                f"host memory has {host_pages} pages, the pool {pages}: users in the pool are in host memory too, so few "
                f"users that leave the pool are left there"
            )
        words = getattr(cache.reload, "words", None)  # `HostHits` imports torch
        if words is not None:
            found.append(f"on host hit: {words()}")
        return tuple(found)

    # ── one load ───────────────────────────────────────────────────────────────────────────────────

    def by_loadgen(self, scenario: str, rate: float, *, slo_ms: float) -> Point:
        """Run MLPerf LoadGen's Server scenario at a rate, or Offline.

        Args:
            scenario: server or offline.
            rate: requests per second; for offline the expected one.
            slo_ms: latency limit of LoadGen's own verdict.

        Raises:
            Unavailable: LoadGen is not installed.
            AttnbenchError: the generator ended too early.
        """
        version = need_loadgen()
        given, queries, duration_ms = rate, 1, 1000 * self.duration_s
        if scenario == "server":
            given, queries = rate_for_loadgen(rate, self.duration_s, self.seed + SCHEDULE_SEED)
            # The last request is at the end, and none may follow; a single one is at the start.
            duration_ms = duration_ms - 1 if queries > 1 else 0
        with tempfile.TemporaryDirectory(prefix="attnbench-loadgen-") as folder:
            settings = Settings(
                scenario=scenario.capitalize(),
                rate=given,
                duration_ms=max(0 if scenario == "server" else 1, int(duration_ms)),
                slo_ms=slo_ms,
                queries=queries,
                samples=len(self.users),
                seed=self.seed,
                folder=folder,
            )
            with old_objects_left_alone() as collections, by_loadgen(settings) as generator:
                label = self._label(scenario, rate)
                ledger, counts, stood = self._served(generator, self.users, label, collections)
            schedule, notes = loadgen_schedule(ledger, generator, Path(folder))
        return point_of(
            ledger,
            schedule,
            scenario=scenario,
            generator=f"{LOADGEN} {version}",
            asked=rate if scenario == "server" else None,
            slos_ms=self.slos_ms,
            cache=counts,
            notes=[*notes, *stood],
        )

    def returning(self, rate: float, burstiness: float) -> Point:
        """Serve users who return after gaps of their own, issued by our generator."""
        assert isinstance(self.users, Users)
        due, users = gaps.arrivals(
            users=len(self.users), rate=rate, duration_s=self.duration_s, burstiness=burstiness, seed=self.seed
        )
        return self.on_time("gaps", rate, due.tolist(), Indexed(self.users, users.tolist()))

    def replayed(self, rate: float) -> Point:
        """Serve the requests of prepared files, their times scaled to a rate, from an empty cache."""
        assert isinstance(self.users, Replay)
        self._forget()
        lines = len(self.users)
        due = self.users.due_ns(rate, self.duration_s)
        notes = [] if len(due) < lines else [f"all {lines} lines of the source"]
        return self.on_time("replay", rate, due, self.users, notes)

    def on_time(
        self, scenario: str, rate: float, due_ns: Sequence[int], library: Library, notes: Sequence[str] = ()
    ) -> Point:
        """Serve requests at given times, issued by our generator.

        Args:
            scenario: for the report.
            rate: intended rate of these times.
            due_ns: from the start, ascending.
            library: of the requests: number k belongs to the k-th time.
            notes: for the report.

        Raises:
            AttnbenchError: the generator ended too early.
        """
        judged = Judged()
        with old_objects_left_alone() as collections, scheduled(due_ns) as generator:
            label = self._label(scenario, rate)
            ledger, counts, stood = self._served(generator, library, label, collections, judged.take)
        schedule = by_schedule(ledger, due_ns, generator.origin_ns or 0)
        return point_of(
            ledger,
            schedule,
            scenario=scenario,
            generator=OURS,
            asked=rate,
            slos_ms=self.slos_ms,
            cache=counts,
            auc=judged.of_tasks(),
            notes=[*notes, *stood],
        )

    def _served(
        self,
        generator: Generator,
        library: Library,
        label: str,
        collections: Collections,
        on_scores: Callable[[Sequence[Request], Any], None] | None = None,
    ) -> tuple[Ledger, dict[str, int], tuple[str, ...]]:
        """The ledger, what the cache counted meanwhile, and what stood still.

        The generator issues from its start: what takes long, like the collection of all that is there already, comes
        before it.
        """
        cache = self.engine.cache
        before = cache.counts.as_dict() if cache is not None else {}
        progress = Progress(label, self.on_progress)
        server = Server(generator, self.engine, library, self.batching, on_progress=progress, on_scores=on_scores)
        with first_uses() as first_used_ms:
            ledger = server.run()
        self.ending = server.ending
        if not ledger.interrupted:
            generator.check()
        try:
            self.engine.settle()
        except RuntimeError as error:
            words = " ".join(str(error).split())[:200]
            raise AttnbenchError(f"load: the device failed after {ledger.answered} answers: {words}") from None
        after = cache.counts.as_dict() if cache is not None else {}
        counts = {name: count - before[name] for name, count in after.items()}
        return ledger, counts, pauses(ledger, collections.longest_ms, first_used_ms)

    def _label(self, scenario: str, rate: float) -> str:
        return f"{scenario} {rate_text(rate)}/s" if scenario != "offline" else scenario


@dataclass(frozen=True, slots=True)
class Indexed:
    """A library whose samples are places of a schedule, with the user who arrives there."""

    users: Users
    whose: Sequence[int]

    def take(self, index: int) -> Request | Refused:
        """Return the next request of the user who arrives at that place."""
        return self.users.take(self.whose[index])


def sizes_up_to(most: int) -> list[int]:
    """Return the batch sizes served before a load: few of the large ones, whose steps are alike and take long."""
    found = list(range(1, min(most, EACH_SIZE) + 1))
    while found[-1] < most:
        found.append(min(most, int(LARGER * found[-1])))
    return found


class Seldom:
    """Says lines of progress, one in two seconds, each with the time since the beginning."""

    def __init__(self, on_progress: OnProgress, label: str) -> None:
        """Begin.

        Args:
            on_progress: called with each line.
            label: start of each line.
        """
        self._on_progress, self._label = on_progress, label
        self._began = self._next = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for a line."""
        return time.monotonic() >= self._next + TELL_S

    def __call__(self, words: str) -> None:
        """Say a line, if it is time for one."""
        if self.due():
            self._next = time.monotonic()
            self._on_progress(f"{self._label}: {self._next - self._began:.0f} s, {words}")


class Progress:
    """Prints a line every two seconds; called between batches."""

    def __init__(self, label: str, on_progress: OnProgress) -> None:
        """For one load.

        Args:
            label: start of each line.
            on_progress: called with each line.
        """
        self._told = Seldom(on_progress, f"load: {label}")

    def __call__(self, ledger: Ledger, waiting: int) -> None:
        """Report the progress, if it is time to."""
        if self._told.due():
            answered = sum(batch.size for batch in ledger.batches)
            self._told(f"{len(ledger.index)} arrived, {answered} answered, {waiting} wait")


def loadgen_schedule(ledger: Ledger, generator: Generator, folder: Path) -> tuple[Schedule, list[str]]:
    """Return when LoadGen had scheduled each request, on the ledger's clock.

    Its trace has a clock of its own.  A request reaches the server after LoadGen's call, so the smallest difference is
    the clock offset plus the shortest delay.

    Raises:
        AttnbenchError: the trace does not belong to the ledger.
    """
    origin = generator.origin_ns or 0
    if ledger.interrupted:
        note = "interrupted: LoadGen wrote no trace, latency counts from the issue of a request"
        return Schedule(list(ledger.issued_ns), origin), [note]
    found = loadgen_files.samples(folder)
    if [one.index for one in found] != ledger.index:
        raise AttnbenchError(
            f"load: LoadGen's trace has {len(found)} samples that are not the {len(ledger.index)} that it issued"
        )
    words = loadgen_files.summary(folder)
    if not found:
        return Schedule([], origin, [], words), []
    shift = min(at - one.scheduled_ns - one.issued_ns for at, one in zip(ledger.issued_ns, found, strict=True))
    due = [one.scheduled_ns + shift for one in found]
    return Schedule(due, due[0], [one.done_ns for one in found], words), []


def highest_rate(
    measure: Callable[[float], Point],
    slo_ms: float,
    start: float,
    *,
    most_probes: int = MOST_PROBES,
    resolution: float = 0.05,
    possible: Callable[[float], bool] = lambda rate: True,
) -> float | None:
    """Return the highest rate at which 99 % of all requests are in time: doubled or halved first, then bisected.

    Args:
        measure: runs a load at a rate; may return a cached point.
        slo_ms: latency limit.
        start: the first rate tried.
        most_probes: most loads.
        resolution: of the result, as a share of it.
        possible: whether a load can have a rate; one that it cannot have ends the search.

    Returns:
        The highest rate that met the limit; None: none of those tried.
    """
    met: float | None = None
    missed: float | None = None
    rate = start
    for _ in range(most_probes):
        if not possible(rate):
            break
        point = measure(rate)
        if point.interrupted:
            break
        if in_time(point, slo_ms):
            met = rate
            rate = rate * 2 if missed is None else (rate + missed) / 2
        else:
            missed = rate
            rate = rate / 2 if met is None else (rate + met) / 2
        if met is not None and missed is not None and missed - met <= resolution * missed:
            break
    return met


def in_time(point: Point, slo_ms: float) -> bool:
    """Return whether the 99th percentile of all requests is within the limit; a refused request is not in time."""
    good = sum(latency <= slo_ms for latency in point.latency_ms)
    return point.issued > 0 and good >= IN_TIME * point.issued


__all__ = ["Bench", "Indexed", "highest_rate", "in_time", "need_loadgen"]
