"""Executors on a Ray cluster: an actor a GPU, each with the same worker process as here.

The queue is ours (`sweep.schedule`).  A machine that is lost takes its actor along, and so the group that was at work
there, which another measures.  The code of this package and the --backends files travel; libraries do not: what each
machine has of them is in the environment of its records.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import socket
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attnbench
from attnbench.errors import Unavailable, UsageError, refusal
from attnbench.machine.device import Device
from attnbench.record import Environment, PlannedGroup, Record, Settings, from_dict, to_dict
from attnbench.sweep import ray_actor
from attnbench.sweep.executor import ExecutorLost, Measured, OnProgress, Progress

ANSWER_S = 5.0
"""For the address to take a connection."""
START_S = 60.0
"""For an actor to be ready: it imports no torch."""
LOOK_S = 1.0
"""How often a GPU that another run holds is asked for."""
CLOSE_S = 20.0
"""For an actor to end its worker; it takes a second."""
SURROUNDINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Of something that takes connections and is no Ray: ten seconds instead of minutes.
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "4",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
}
"""Variables that Ray reads when it is imported, unless they are set."""
WHO = "attnbench run"


class RayExecutor:
    """A device of a cluster."""

    def __init__(self, ray: Any, name: str, actor: Any, *, wait: bool) -> None:
        self.name, self._ray, self._actor, self._wait = name, ray, actor, wait

    def order(self) -> str:
        """Its name: Ray gives a GPU to one actor at a time."""
        return self.name

    def open(self, on_progress: OnProgress) -> None:
        """Have the actor take the lock of its GPU."""
        said = False
        while (answer := self._ask(self._actor.open.remote(), START_S)) is not None:
            held, waits = answer
            if not waits:
                raise ExecutorLost(held, measuring=False)
            if not self._wait:
                raise Unavailable(f"{self.name}: {held}")
            if not said:
                on_progress(Progress(f"{self.name} waits: {held}"))
                said = True
            time.sleep(LOOK_S)

    def measure(self, group: PlannedGroup, settings: Settings, on_progress: OnProgress) -> Measured:
        """Measure a group there."""
        on_progress(Progress("measuring", group))
        words = (json.dumps(to_dict(one)) for one in (group, settings))
        answer = json.loads(self._ask(self._actor.measure.remote(*words)))
        if "lost" in answer:
            raise ExecutorLost(answer["lost"], measuring=answer["measuring"])
        return Measured(
            tuple(from_dict(Record, one, "record") for one in answer["records"]),
            tuple(from_dict(Environment, one, "environment") for one in answer["environments"]),
            float(answer["sampling_s"]),
        )

    def stop(self) -> None:
        """End the actor, and with it what it is measuring."""
        self._ray.kill(self._actor)

    def close(self) -> None:
        """End the worker there, then the actor."""
        try:
            self._ask(self._actor.close.remote(), CLOSE_S)
        except ExecutorLost:
            pass
        self._ray.kill(self._actor)

    def _ask(self, call: Any, timeout_s: float | None = None) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=timeout_s)
        except (errors.RayActorError, errors.ActorUnschedulableError) as error:
            wrong = f"its machine or its actor is gone ({type(error).__name__})"
            raise ExecutorLost(wrong, measuring=isinstance(error, errors.RayActorError)) from None
        except KeyboardInterrupt:
            self.stop()  # or closing it would wait for what it is measuring
            raise
        except errors.GetTimeoutError:
            raise ExecutorLost(f"no answer within {timeout_s:g} s", measuring=False) from None


def ray_executors(address: str, device: Device, files: Sequence[str], *, wait: bool) -> list[RayExecutor]:
    """An executor for each GPU of a cluster, or, for the device cpu, for each machine.

    Args:
        address: HOST:PORT of the cluster; this machine has to be one of it.
        device: cpu, or any GPU.
        files: paths of --backends files.
        wait: for other runs to let go of their GPUs.

    Raises:
        UsageError: the address is written wrong.
        Unavailable: Ray is not installed, nobody answers, or the cluster has no such device.
    """
    ray = _connected(address)
    actor = ray_actor.actor_class(ray)
    code = packed_code()
    digest, shared = hashlib.sha256(code).hexdigest()[:16], ray.put(code)
    texts = [(Path(file).name, Path(file).read_text("utf-8")) for file in files]
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    executors = []
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeManagerAddress"])
    for number, node in enumerate(nodes, start=1):
        count = int(node["Resources"].get("GPU", 0)) if device.on_gpu else 1
        for index in range(count):
            options = {"num_gpus": 1, "num_cpus": 0} if device.on_gpu else {"num_cpus": 1}
            there = actor.options(**options, scheduling_strategy=affinity(node["NodeID"], soft=False))
            here = str(Device(device.kind, 0))  # Ray shows an actor its own GPU only
            name = f"machine {number} {Device(device.kind, index)}"
            executors.append(RayExecutor(ray, name, there.remote(shared, digest, here, texts), wait=wait))
    if not executors:
        raise Unavailable(refusal(WHO, "--address", address, "is a cluster without a GPU", "--device cpu, or GPUs"))
    return executors


def packed_code() -> bytes:
    """This package as a zip file: the same bytes for the same code."""
    root, data = Path(attnbench.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                packed.writestr(zipfile.ZipInfo(f"{root.name}/{path.relative_to(root)}"), path.read_bytes())
    return data.getvalue()


def _connected(address: str) -> Any:
    """Ray, connected to a cluster."""
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise UsageError(refusal(WHO, "--address", address, "cannot be used", "HOST:PORT of a Ray cluster"))
    for name, value in SURROUNDINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise Unavailable(refusal(WHO, "--engine", "ray", "needs Ray", "pip install 'attnbench[ray]'")) from None
    todo = f"on this machine: ray start --address {address}"
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (OSError, ConnectionError, RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise Unavailable(refusal(WHO, "--address", address, f"does not answer ({words})", todo)) from None
    return ray
