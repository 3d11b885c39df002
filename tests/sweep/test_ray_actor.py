"""What an actor reverts of Ray's changes to its process."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import zipfile

from attnbench.sweep import ray_actor

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


def test_code_that_no_actor_used_for_long_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        packed.writestr("attnbench/__init__.py", "")
    places = [ray_actor._unpacked(data.getvalue(), name) for name in ("first", "second")]
    long_ago = time.time() - 1 - ray_actor.KEPT_DAYS * 86400
    for place in places:
        os.utime(place, (long_ago, long_ago))
    assert ray_actor._unpacked(b"", "first") == places[0], "used again"
    assert (ray_actor._unpacked(data.getvalue(), "third") / "attnbench/__init__.py").is_file()
    assert [place.is_dir() for place in places] == [True, False]
