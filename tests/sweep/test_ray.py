"""A real Ray cluster of three nodes on loopback: runs measured there, and one node killed during a group."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
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
from attnbench.sweep.executor import ExecutorLost
from attnbench.sweep.run import execute

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.filterwarnings("ignore"),  # of Ray itself
]
HEAD, OTHERS = "127.0.0.2", ("127.0.0.3", "127.0.0.4")
TRIES = 3


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HEAD, 0))
        return one.getsockname()[1]


def start(*words, env):
    """A node: the command ends when it is up, its processes stay.  Ray gives one 30 seconds; a busy machine takes more."""
    line = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--num-cpus=1",
        "--num-gpus=0",
        "--disable-usage-stats",
    ]
    for _ in range(TRIES):
        done = subprocess.run([*line, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            return
        kill(pid for pid, _ in processes(words[0]))
    pytest.fail(done.stdout)


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


def children(parent):
    """Processes that one has started."""
    every = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
    return [pid for pid in every if parent_of(pid) == parent]


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


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
    port = free_port()
    own = {
        "HOME": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray listens on every interface, whatever address it is given: whoever has not this token is turned away.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # What attnbench sets to be refused within ten seconds is too short for a busy machine.
        "RAY_gcs_rpc_server_connect_timeout_s": "60",
        "RAY_py_gcs_connect_timeout_s": "60",
    }
    head = f"--node-ip-address={HEAD}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        try:
            start(head, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}", env=os.environ)
            for one, gpus in zip(OTHERS, (5, 0), strict=True):  # pretended: Ray looks for none where it is told
                words = f"--address={HEAD}:{port}", f"--num-gpus={gpus}"
                start(f"--node-ip-address={one}", *words, env=os.environ)
            yield f"{HEAD}:{port}", folder
        finally:
            import ray

            ray.shutdown()
            kill(pid for pid, _ in processes(folder))
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    assert not (home / ".ray").exists(), "no token lies about"


def test_a_cluster_measures_a_plan_and_a_killed_node_costs_only_its_group(cluster):
    from attnbench.sweep.ray_engine import ray_executors

    address, folder = cluster
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Unavailable, match="is a cluster without 6 GPUs in one machine; --device cpu"):
        ray_executors(address, Device("cuda"), [], wait=True, size=6)
    assert signal.getsignal(signal.SIGTERM) is before, "Ray's own way prints stacks, and keeps nothing"
    executors = ray_executors(address, CPU, [MISBEHAVING], wait=True)
    assert [executor.name for executor in executors] == ["machine 1 cpu", "machine 2 cpu", "machine 3 cpu"]
    plan, lost, began, killed = small_run(*[["honest"]] * 8), [], {}, threading.Event()

    def on_progress(event):
        if event.kind == "activity" and event.text == "machine 3 cpu measuring" and not killed.is_set():
            began[event.text] = event.group
            [raylet] = [pid for pid, words in processes(folder, OTHERS[1]) if "raylet/raylet" in words]
            # With the actor, as when a machine is lost: alone it notices after seconds, and the group may end before.
            kill([*children(raylet), raylet])
            killed.set()
        if event.kind == "lost":
            lost.append(event.text)

    run = execute(plan, executors=executors, on_event=on_progress)
    assert killed.is_set()
    assert len(lost) == 1
    assert lost[0].startswith("machine 3 cpu is lost: its machine or its actor is gone (")
    assert [one.group for one in run.records] == [group.group for group in plan.plan], "each once, the lost one again"
    assert {one.status for one in run.records} == {Status.PASSED}
    assert began["machine 3 cpu measuring"] in {one.group for one in run.records}
    assert {one.environment for one in run.records} == {0}, "one machine in truth"


def test_a_group_over_several_gpus_has_an_actor_with_as_many_of_one_machine(cluster):
    from attnbench.sweep.ray_engine import ray_executors

    def seen(actor):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(","), [str(one) for one in actor._executor.devices]

    teams = ray_executors(cluster[0], Device("cuda"), [], wait=False, size=2)
    try:
        assert [one.name for one in teams] == ["machine 2 cuda:0-1", "machine 2 cuda:2-3"], "one of five is left over"
        answers = [one._ask(one._actor.__ray_call__.remote(seen)) for one in teams]
        assert [devices for _, devices in answers] == [["cuda:0", "cuda:1"]] * 2, "as each sees its own"
        assert len({gpu for gpus, _ in answers for gpu in gpus}) == 4
    finally:
        for one in teams:
            one.close()
    alone = ray_executors(cluster[0], Device("cuda"), [], wait=False)
    assert [one.name for one in alone] == [f"machine 2 cuda:{index}" for index in range(5)]
    for one in alone:
        one.close()


def asked_for_ever(executor):
    while True:  # Ray ends an actor soon, not at once
        executor._ask(executor._actor.close.remote())


def test_a_machine_that_another_job_has_is_waited_for_or_refused(cluster, monkeypatch):
    from attnbench.sweep import ray_engine

    address, _ = cluster
    holder = ray_engine.ray_executors(address, CPU, [], wait=False)[0]
    holder.open(lambda progress: None)
    monkeypatch.setattr(ray_engine, "START_S", 3.0)
    name, told = holder.name, []
    second = ray_engine.ray_executors(address, CPU, [], wait=False)[0]
    with pytest.raises(Unavailable, match=rf"^{name}: Ray has started nothing there for 3 s, another job may have it$"):
        second.open(told.append)
    second.close()
    third = ray_engine.ray_executors(address, CPU, [], wait=True)[0]

    def hear(progress):
        told.append(progress.text)
        holder.close()

    third.open(hear)
    assert told == [f"{name} waits: Ray has started nothing there for 3 s, another job may have it"]
    with pytest.raises(ExecutorLost, match=r"its actor failed \(RayTaskError.*JSONDecodeError.*\)$"):
        third._ask(third._actor.measure.remote("not a group", "{}"))
    third.close()
    with pytest.raises(ExecutorLost, match=r"its machine or its actor is gone \(ActorDiedError: .+\)$") as gone:
        asked_for_ever(third)
    assert gone.value.measuring


def test_an_address_that_nobody_answers_is_one_line():
    from attnbench.sweep.ray_engine import ray_executors

    with pytest.raises(UsageError, match=r"^attnbench run: --address=here cannot be used; HOST:PORT of a Ray cluster$"):
        ray_executors("here", CPU, [], wait=True)
    for wrong in (
        "127.0.0.1:6379:1",
        ":6379",
        "[]:6379",
        "::1:6379",
        "[host]:1",
        "host:0",
        "host:65536",
        "a b:1",
        "host:٣",
    ):
        with pytest.raises(UsageError, match=rf"--address={re.escape(wrong)} cannot be used; HOST:PORT"):
            ray_executors(wrong, CPU, [], wait=True)
    with pytest.raises(UsageError, match=r"--address=ray://127\.0\.0\.1:1 cannot be used"):
        ray_executors("ray://127.0.0.1:1", CPU, [], wait=True)
    with pytest.raises(
        Unavailable, match=r"^attnbench run: --address=127.0.0.1:1 does not answer \(.*refused\); on this"
    ):
        ray_executors("127.0.0.1:1", CPU, [], wait=True)


def test_a_token_that_is_missing_is_one_line(tmp_path):
    with socket.socket() as one:
        one.bind((HEAD, 0))
        one.listen()
        address = f"{HEAD}:{one.getsockname()[1]}"
        words = [sys.executable, "-m", "attnbench", "run", "minimal", "--device", "cpu", "--engine", "ray"]
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env = {**own, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
        done = subprocess.run([*words, "--address", address], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"attnbench run: --address={address} does not answer (Token authentication is enabled but")
    assert said.endswith(f"on this machine: ray start --address {address}, with the cluster's token")
