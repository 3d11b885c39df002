"""A real Ray cluster of three nodes on loopback: runs measured there, and one node killed during a group."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_runs import MISBEHAVING, small_run

from attnbench.errors import Unavailable, UsageError
from attnbench.machine.device import CPU, Device
from attnbench.record import Status
from attnbench.sweep.run import execute

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.filterwarnings("ignore"),  # of Ray itself
]
HEAD, OTHERS = "127.0.0.2", ("127.0.0.3", "127.0.0.4")


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HEAD, 0))
        return one.getsockname()[1]


def started(*words, env):
    """A node: the command ends when it is up, its processes stay."""
    line = [Path(sys.executable).with_name("ray"), "start", "--num-cpus=1", "--num-gpus=0", "--disable-usage-stats"]
    return subprocess.Popen([*line, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def processes(folder, address=""):
    """Of the cluster (whose sessions lie in a folder), or of one of its nodes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and address in words and int(place.name) != os.getpid():
            found.append((int(place.name), words))
    return found


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address and folder."""
    # Ray's sockets lie in this folder, and their names have room for little.
    folder = Path(f"/tmp/ray-{os.getpid()}")
    home = tmp_path_factory.mktemp("home")
    env = {**os.environ, "HOME": str(home), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    address = f"{HEAD}:{free_port()}"
    words = (f"--node-ip-address={HEAD}", f"--port={address.split(':')[1]}", "--include-dashboard=false")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "RAY_AUTH_MODE"):
            patch.setenv(name, env[name])
        try:
            assert started("--head", *words, f"--temp-dir={folder}", env=env).wait(300) == 0
            nodes = [started(f"--address={address}", f"--node-ip-address={one}", env=env) for one in OTHERS]
            assert [node.wait(300) for node in nodes] == [0, 0]
            yield address, folder
        finally:
            import ray

            ray.shutdown()
            kill(pid for pid, _ in processes(folder))
            subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_a_cluster_measures_a_plan_and_a_killed_node_costs_only_its_group(cluster):
    from attnbench.sweep.ray_engine import ray_stations

    address, folder = cluster
    with pytest.raises(Unavailable, match="is a cluster without a GPU; --device cpu"):
        ray_stations(address, Device("cuda"), [], wait=True)
    stations = ray_stations(address, CPU, [MISBEHAVING], wait=True)
    assert [station.name for station in stations] == ["machine 1 cpu", "machine 2 cpu", "machine 3 cpu"]
    plan, lost, began, killed = small_run(*[["honest"]] * 8), [], {}, threading.Event()

    def hear(event):
        if event.kind == "activity" and event.text == "machine 3 cpu measuring" and not killed.is_set():
            began[event.text] = event.group
            raylets = [pid for pid, words in processes(folder, OTHERS[1]) if "raylet/raylet" in words]
            kill(raylets)
            killed.set()
        if event.kind == "lost":
            lost.append(event.text)

    run = execute(plan, stations=stations, on_event=hear)
    assert killed.is_set()
    assert len(lost) == 1
    assert lost[0].startswith("machine 3 cpu is lost: its machine or its actor is gone (")
    assert [one.group for one in run.records] == [group.group for group in plan.plan], "each once, the lost one again"
    assert {one.status for one in run.records} == {Status.PASSED}
    assert began["machine 3 cpu measuring"] in {one.group for one in run.records}
    assert {one.environment for one in run.records} == {0}, "one machine in truth"


def test_an_address_that_nobody_answers_is_one_line():
    from attnbench.sweep.ray_engine import ray_stations

    with pytest.raises(UsageError, match=r"^attnbench run: --address=here cannot be used; HOST:PORT of a Ray cluster$"):
        ray_stations("here", CPU, [], wait=True)
    with pytest.raises(
        Unavailable, match=r"^attnbench run: --address=127.0.0.1:1 does not answer \(.*refused\); on this"
    ):
        ray_stations("127.0.0.1:1", CPU, [], wait=True)
