"""Executors on a Ray cluster: an actor a GPU, or a team of GPUs, each with the same worker process as here.

The queue is ours (`sweep.schedule`).  If a machine is lost, its actor and the group being measured there are lost too,
and another executor measures that group.  The code of this package and the --backends files are sent along; libraries
are not: the environment of each record says what its machine has.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import socket
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attnbench
from attnbench.errors import Unavailable, UsageError, WorkerError, refusal
from attnbench.machine.device import Device
from attnbench.record import Environment, PlannedGroup, Record, Settings, from_dict, to_dict
from attnbench.sweep import ray_actor
from attnbench.sweep.device_worker import Stopped, check_kept, check_requested
from attnbench.sweep.executor import ExecutorLost, Measured, OnProgress, Progress

ADDRESS = re.compile(r"(?:(?P<host>[^][:/\s]+)|\[(?P<ipv6>[0-9a-fA-F:.%]+)\]):(?P<port>[0-9]{1,5})", re.ASCII)
ANSWER_S = 5.0
"""Time limit for a connection to the address."""
START_S = 60.0
"""Time limit for an actor to be ready: it imports no torch."""
LOOK_S = 1.0
"""Interval of attempts at a GPU that another run has, and of checks that the head is there."""
HEAD_S = 20.0
"""Longest accepted silence of the head."""
WORDS = 200
"""Most characters of a Ray error that are shown."""
CLOSE_S = 20.0
"""Time limit for an actor to end its worker; it takes a second."""
SURROUNDINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # For an address that accepts connections and is not Ray: ten seconds instead of minutes.
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "4",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    # Without a head, Ray would end this process after 60 seconds, with no report of what was measured.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}
"""Variables that Ray reads on import; set unless they already are."""
WHO = "attnbench run"


class Silent(ExecutorLost):
    """An actor did not answer in time."""


class Head:
    """The head machine, without which a cluster does not work.

    Args:
        host: of the cluster's address.
        port: of the cluster's address.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._guard = threading.Lock()
        self._heard = self._looked = time.monotonic()

    def connect(self) -> None:
        """Open a connection, and close it.

        Raises:
            OSError: the connection failed.
        """
        socket.create_connection((self.host, self.port), ANSWER_S).close()

    def check(self) -> None:
        """Check the connection if the last check is old.

        Raises:
            ExecutorLost: the head has not answered for `HEAD_S`.
        """
        with self._guard:
            if time.monotonic() - self._looked >= LOOK_S:
                try:
                    self.connect()
                    self._heard = time.monotonic()
                except OSError:
                    pass
                self._looked = time.monotonic()
            silent = self._looked - self._heard
        if silent >= HEAD_S:
            wrong = f"the head of the cluster, {self.host}:{self.port}, has not answered for {HEAD_S:g} s"
            raise ExecutorLost(wrong, measuring=False)


class RayExecutor:
    """An executor for a device of a cluster."""

    def __init__(self, ray: Any, name: str, actor: Any, head: Head, *, wait: bool) -> None:
        self.name, self._ray, self._actor, self._head, self._wait = name, ray, actor, head, wait
        self._interrupted = self._measuring = False

    def order(self) -> str:
        """Return its name: Ray gives a GPU to one actor at a time."""
        return self.name

    def open(self, on_progress: OnProgress) -> None:
        """Have the actor take the lock of its GPU, once Ray has started it there."""
        call, said = self._actor.open.remote(), set[str]()
        while True:
            try:
                answer = self._ask(call, START_S)
            except Silent:
                held = f"Ray has started nothing there for {START_S:g} s, another job may have it"
            else:
                if answer is None:
                    return
                held, waits = answer
                if not waits:
                    raise ExecutorLost(held, measuring=False)
                call = self._actor.open.remote()
            if not self._wait:
                raise Unavailable(f"{self.name}: {held}")
            if held not in said:
                on_progress(Progress(f"{self.name} waits: {held}"))
                said.add(held)
            time.sleep(LOOK_S)

    def measure(self, group: PlannedGroup, settings: Settings, on_progress: OnProgress) -> Measured:
        """Measure a group on that device."""
        on_progress(Progress("measuring", group))
        words = (json.dumps(to_dict(one)) for one in (group, settings))
        self._measuring = True
        try:
            answer = self._ask(self._actor.measure.remote(*words))
        finally:
            self._measuring = False
        try:
            return read_answer(answer, group)
        except WorkerError as error:
            raise ExecutorLost(str(error), measuring=True) from None

    def interrupt(self, name: str, *, at_once: bool) -> bool:
        """Give up the current measurement: the actor receives no calls while it measures."""
        self._interrupted = True
        return self._measuring

    def stop(self) -> None:
        """End the actor, and with it the current measurement."""
        self._ray.kill(self._actor)

    def close(self) -> None:
        """End the worker there, then the actor."""
        try:
            self._ask(self._actor.close.remote(), CLOSE_S)
        except ExecutorLost:
            pass
        self._ray.kill(self._actor)

    def _ask(self, call: Any, timeout_s: float | None = None) -> Any:
        errors, asked = self._ray.exceptions, time.monotonic()
        while True:
            try:
                return self._ray.get(call, timeout=LOOK_S)
            except errors.GetTimeoutError:
                self._head.check()
                if self._interrupted:
                    self._interrupted = False
                    self.stop()  # otherwise closing would wait for the measurement
                    raise Stopped from None
                if timeout_s is not None and time.monotonic() - asked >= timeout_s:
                    raise Silent(f"no answer within {timeout_s:g} s", measuring=False) from None
            except errors.RayError as error:
                # An actor that could not be placed has measured nothing.
                measuring = not isinstance(error, errors.ActorUnschedulableError)
                raise ExecutorLost(_in_words(error, errors), measuring=measuring) from None
            except KeyboardInterrupt:
                self.stop()  # otherwise closing would wait for the measurement
                raise


def _in_words(error: Exception, errors: Any) -> str:
    """Describe a Ray error of an actor; the last line of its traceback is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = f": {lines[-1][:WORDS]}" if lines else ""
    gone = isinstance(error, (errors.RayActorError, errors.ActorUnschedulableError))
    what = "its machine or its actor is gone" if gone else "its actor failed"
    return f"{what} ({type(error).__name__}{cause})"


def read_answer(answer: Any, group: PlannedGroup) -> Measured:
    """Parse an actor's answer and check it against the request.

    Raises:
        ExecutorLost: the answer says that the executor is lost.
        WorkerError: it is not a valid answer to this request.
    """
    try:
        said = json.loads(answer)
        if "lost" in said:
            raise ExecutorLost(str(said["lost"]), measuring=bool(said["measuring"]))
        records = tuple(from_dict(Record, one, "record") for one in said["records"])
        environments = tuple(from_dict(Environment, one, "environment") for one in said["environments"])
        sampling_s = float(said["sampling_s"])
    except (TypeError, ValueError, KeyError, RecursionError, UsageError) as error:
        raise WorkerError(f"its answer cannot be read ({type(error).__name__}: {error})") from None
    for one in records:
        check_requested(one, group)
    # Without statistics: the actor has checked its worker's, and its GPU is idle meanwhile.
    check_kept("answer", statistics=False, records=records, environments=environments)
    numbers = {one.environment for one in records} - {None}
    if tuple(one.backend for one in records) != group.backends or not numbers <= set(range(len(environments))):
        raise WorkerError("its answer has not each backend of the group once")
    return Measured(records, environments, sampling_s)


def ray_executors(
    address: str, device: Device, files: Sequence[str], *, wait: bool, size: int = 1
) -> list[RayExecutor]:
    """An executor for each GPU of a cluster, or each `size` GPUs of a machine; for the device cpu, for each machine.

    Args:
        address: HOST:PORT of the cluster; this machine has to belong to it.
        device: cpu, or any GPU.
        files: paths of --backends files.
        wait: for other runs to let go of their GPUs.
        size: GPUs that a group is spread over at most; 1 of a CPU.

    Raises:
        UsageError: the address is written wrong.
        Unavailable: Ray is not installed, nobody answers, or no machine of the cluster has so many GPUs.
    """
    ray, head = _connected(address)
    actor = ray_actor.actor_class(ray)
    code = packed_code()
    digest, shared = hashlib.sha256(code).hexdigest()[:16], ray.put(code)
    texts = [(Path(file).name, Path(file).read_bytes()) for file in files]
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    executors = []
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeManagerAddress"])
    for number, node in enumerate(nodes, start=1):
        count = int(node["Resources"].get("GPU", 0)) // size if device.on_gpu else 1
        for index in range(count):
            options = {"num_gpus": size, "num_cpus": 0} if device.on_gpu else {"num_cpus": 1}
            there = actor.options(**options, scheduling_strategy=affinity(node["NodeID"], soft=False))
            here = [str(Device(device.kind, place)) for place in range(size)]  # Ray shows an actor its own GPUs only
            name = f"machine {number} {Device(device.kind, index * size)}" + f"-{index * size + size - 1}" * (size > 1)
            executors.append(RayExecutor(ray, name, there.remote(shared, digest, here, texts), head, wait=wait))
    if not executors:
        what = "a GPU" if size == 1 else f"{size} GPUs in one machine"
        raise Unavailable(refusal(WHO, "--address", address, f"is a cluster without {what}", "--device cpu, or GPUs"))
    return executors


def packed_code() -> bytes:
    """Return this package as a zip file, with the same bytes for the same code."""
    root, data = Path(attnbench.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                packed.writestr(zipfile.ZipInfo(f"{root.name}/{path.relative_to(root)}"), path.read_bytes())
    return data.getvalue()


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Restore the SIGTERM handler: Ray's prints the stacks of its threads and keeps nothing that was measured."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGTERM, before)


def _connected(address: str) -> tuple[Any, Head]:
    """Connect to a cluster; return the ray module and the cluster's head."""
    found = ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise UsageError(refusal(WHO, "--address", address, "cannot be used", "HOST:PORT of a Ray cluster"))
    host, port = found["host"] or found["ipv6"], found["port"]
    for name, value in SURROUNDINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise Unavailable(refusal(WHO, "--engine", "ray", "needs Ray", "pip install 'attnbench[ray]'")) from None
    todo, head = f"on this machine: ray start --address {address}, with the cluster's token", Head(host, int(port))
    try:
        head.connect()
        if not ray.is_initialized():
            with _own_sigterm():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        words = " ".join(str(error).split())[:WORDS]
        raise Unavailable(refusal(WHO, "--address", address, f"does not answer ({words})", todo)) from None
    return ray, head
