"""What an actor reverts of Ray's changes to its process."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import os
from attnbench.sweep.ray_actor import as_its_raylet
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONBREAKPOINT"] = "ray.util.rpdb.set_trace"
os.environ["CUDA_VISIBLE_DEVICES"] = "3"
os.nice(5)
said = as_its_raylet()
print(os.environ.get("OMP_NUM_THREADS"), os.environ.get("PYTHONBREAKPOINT"), os.environ["CUDA_VISIBLE_DEVICES"])
print(os.nice(0), said)
"""


def seen(**env: str) -> list[str]:
    own = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")}
    words = [sys.executable, "-c", SCRIPT]
    return subprocess.run(words, env={**own, **env}, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_worker_gets_the_threads_and_the_niceness_of_its_machine():
    variables, niceness = seen()
    assert variables == "None None 3", "Ray shows a process its own GPU, which stays"
    wanted = os.nice(0)
    told = f"measured at niceness {wanted + 5}, which Ray gives its workers; start Ray with RAY_worker_niceness=0"
    assert niceness in (f"{wanted} None", f"{wanted + 5} {told}"), "undone, or said"


def test_what_the_machine_was_given_stays():
    assert seen(OMP_NUM_THREADS="7")[0] == "7 None 3"
