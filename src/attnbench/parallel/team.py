"""The processes of one backend, a rank per device, and the requests of their owner.

The owner writes the whole tensors to unnamed files that all ranks map; each rank copies its rows.  A request goes to every
rank and ends when each has answered.  A rank that dies or raises ends the team.  There are no time limits here: a rank that
hangs runs into the caller's `--timeout`, and ending the owner ends the ranks, which exit when their pipe is closed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.errors import Crashed, Unavailable, WorkerError, refusal
from attnbench.machine import child
from attnbench.machine.device import CPU, Device
from attnbench.parallel.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as torch_device

MODULE = "attnbench.parallel.rank"
SHARED_MEMORY = Path("/dev/shm")
LAST_WORDS = 300
END_S = 5.0


def devices_from(place: torch_device, world: int, who: str) -> list[Device]:
    """Return the devices of a team: that of `place` and those that follow it; on a CPU as many processes.

    Raises:
        Unavailable: there are not enough.
    """
    if place.type != "cuda":
        return [CPU] * world
    from attnbench.machine.devices import count_gpus

    there, start = count_gpus(), place.index or 0
    if start + world > there:
        wrong = f"is over the GPUs from cuda:{start} on: {there - start} of {there}"
        raise Unavailable(refusal(who, "world", world, wrong, f"at most {there - start}"))
    return [Device("cuda", start + number) for number in range(world)]


class Team:
    """Rank processes, joined by NCCL (by gloo on a CPU).

    Args:
        who: program name, for messages.
        devices: one per rank.
    """

    def __init__(self, who: str, devices: Sequence[Device]) -> None:
        self.who, self.devices = who, list(devices)
        # The file through which they find each other, passed by descriptor so that no name remains.
        with tempfile.TemporaryFile() as store:
            self._ranks = [_Rank(number, self.devices, store.fileno()) for number in range(len(devices))]
        self.ended = False

    def peak_tflops(self, dtype: str) -> float | None:
        """Peak of one of its cards, from the data sheet; None for a CPU or a card that is not listed."""
        from attnbench.machine.peaks import peak

        card = self.devices[0].named().name
        found = None if card is None else peak(card, dtype)
        return None if found is None else found.tflops

    def ask(self, **message: Any) -> list[dict[str, Any]]:
        """Send a request to every rank.

        Returns:
            The answer of each rank.

        Raises:
            Crashed: a rank died.
            RuntimeError: a rank raised; with its message.
        """
        if self.ended:
            raise Crashed(refusal(self.who, "ranks", len(self._ranks), "have ended", "a new session"))
        for rank in self._ranks:
            rank.send(message)
        answers: dict[int, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.answers, selectors.EVENT_READ, rank)
            while len(answers) < len(self._ranks):
                for key, _ in selector.select():
                    answers[key.data.number] = self._answer(key.data)
                    selector.unregister(key.fileobj)
        return [answers[rank.number] for rank in self._ranks]

    def _answer(self, rank: _Rank) -> dict[str, Any]:
        answer = rank.receive()
        if answer is not None and "error" in answer:
            # One that has ended is why the others raise, which serve on: they lost it.
            rank, answer = next(((one, None) for one in self._ranks if one.has_ended()), (rank, answer))
        what = f"{rank.number} of {len(self._ranks)} on {self.devices[rank.number]}"
        if answer is None:
            reason = refusal(self.who, "rank", what, rank.death(), "every rank has to answer")
            self.end()
            raise Crashed(reason)
        if "error" in answer:
            self.end()
            raise RuntimeError(f"rank {what}: {answer['error']}")
        return answer

    def end(self) -> None:
        """End the processes."""
        self.ended = True
        for rank in self._ranks:
            rank.end()


_IDLE: dict[tuple[str, tuple[Device, ...]], Team] = {}
"""Teams without a session, by owner and devices: starting a rank takes many seconds, mostly to import torch."""


def start_team(who: str, devices: Sequence[Device]) -> None:
    """Start a team for the next session of `who` on these devices, unless there is one."""
    key = who, tuple(devices)
    if key not in _IDLE:
        _IDLE[key] = Team(who, devices)


def take_team(who: str, devices: Sequence[Device]) -> Team:
    """Return the team that `who` had before on these devices, or a new one; never another owner's."""
    return _IDLE.pop((who, tuple(devices)), None) or Team(who, devices)


def return_team(team: Team) -> None:
    """Keep a team for the owner's next session, unless it has ended."""
    if not team.ended:
        team.ask(do="close")
        _IDLE[team.who, tuple(team.devices)] = team


class Session:
    """One problem of a team: whole tensors in, one call of all ranks, the whole output back.

    Args:
        team: that computes it.
        form: name of the form.
        problem: to be computed.
    """

    def __init__(self, team: Team, form: str, problem: Problem) -> None:
        self.team, self.problem, self.dirty = team, problem, True
        # The files have no names and are closed once all have mapped them: nothing remains however these processes end.
        with contextlib.ExitStack() as opened:
            folder = _roomy(problem)
            files = {name: opened.enter_context(tempfile.TemporaryFile(dir=folder)) for name in problem.shapes()}
            places = {name: f"/proc/{os.getpid()}/fd/{file.fileno()}" for name, file in files.items()}
            self.whole = map_whole(places, problem)
            said = team.ask(do="open", form=form, problem=dataclasses.asdict(problem), places=places)
        self.notes: tuple[str, ...] = tuple(dict.fromkeys(note for one in said for note in one["notes"]))
        self.phases: tuple[str, ...] = tuple(said[0]["phases"])
        self.sent_bytes = max(int(one["sent_bytes"]) for one in said)
        "in one call, by the rank that sends most"
        self.last_ms = 0.0
        _check_rows([rows for one in said for rows in one["rows"]], problem.total, team.who)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load new values of q, k and v, [T, heads, D] each."""
        for name in ("q", "k", "v"):
            self.whole[name].copy_(tensors[name])
        self.team.ask(do="load")
        self.dirty = True

    def run(self, phase: str | None = None) -> float:
        """Run one call of all ranks after a barrier, or one phase; return the milliseconds of the slowest rank."""
        said = self.team.ask(do="run", phase=phase)
        self.dirty = self.dirty or phase is None
        self.last_ms = max(float(one["ms"]) for one in said)
        return self.last_ms

    def out(self) -> Tensor:
        """Return the whole output of the last call, [T, H, D] on the host, and overwrite it on the ranks."""
        if self.dirty:
            self.whole["out"].fill_(float("nan"))
            self.team.ask(do="collect")
            self.dirty = False
        return self.whole["out"]

    def close(self) -> None:
        """Free the memory; the processes belong to the team."""
        self.whole.clear()


def map_whole(places: Mapping[str, str], problem: Problem) -> dict[str, Tensor]:
    """Map the whole tensors from their files, by name: the same memory in every process."""
    import math

    import torch

    found = {}
    for name, shape in problem.shapes().items():
        size = math.prod(shape)
        flat = torch.from_file(places[name], shared=True, size=max(1, size), dtype=getattr(torch, problem.dtype))
        found[name] = flat[:size].view(shape)
    return found


def _roomy(problem: Problem) -> str | None:
    """Return the shared-memory folder if it has room for the tensors twice, else the temporary folder."""
    import math

    most = 4 * sum(map(math.prod, problem.shapes().values()))
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        return str(SHARED_MEMORY) if shutil.disk_usage(SHARED_MEMORY).free > 2 * most else None
    return None


def _check_rows(rows: Sequence[Sequence[int]], total: int, who: str) -> None:
    """Check that the rows reported by the ranks cover every row of the problem once."""
    at = 0
    for start, end in sorted((start, end) for start, end in rows if end > start):
        if start != at:
            raise WorkerError(refusal(who, "rows", f"{start}:{end}", f"do not follow on {at}", "every row once"))
        at = end
    if at != total:
        raise WorkerError(refusal(who, "rows", at, "is not the end", f"{total}"))


class _Rank:
    """One process with its two pipes."""

    def __init__(self, number: int, devices: Sequence[Device], store: int) -> None:
        self.number = number
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        read, write = os.pipe()
        names = ",".join(map(str, devices))
        self._process = subprocess.Popen(
            child.command(MODULE, str(write), str(number), names, f"/proc/self/fd/{store}"),
            env=child.environment(),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=self._words,
            stderr=self._words,
            pass_fds=(write, store),
        )
        os.close(write)
        self.answers = os.fdopen(read, encoding="utf-8")

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a request; if the process has died, that is reported when its answer is read."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(message)}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def receive(self) -> dict[str, Any] | None:
        """Return its answer; None if it died before answering."""
        line = self.answers.readline()
        return dict(json.loads(line)) if line.endswith("\n") else None

    def has_ended(self) -> bool:
        """Whether the process has ended, by a signal or by itself; one that raises does not."""
        return self._process.poll() is not None

    def death(self) -> str:
        """Describe how it ended."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        how = f"crashed ({child.signal_name(-code)})" if code < 0 else f"ended with code {code}"
        self._words.seek(0)
        printed = self._words.read().decode(errors="replace")
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        return how + (f": {lines[-1][:LAST_WORDS]}" if lines else "")

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        self.answers.close()
        self._words.close()
