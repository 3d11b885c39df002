"""Restrictions of a container, on made-up file systems; and the files from which one is built."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.machine.container import findings, in_container

ROOT = Path(__file__).parents[2]
GIB = 2**30


@pytest.fixture
def root(tmp_path):
    """A container's file system with nothing wrong in it."""
    for name, text in {
        ".dockerenv": "",
        "proc/1/comm": "tini\n",
        "proc/1/cgroup": "0::/\n",
        "proc/self/status": f"Name:\tx\nCapEff:\t{1 << 21 | 1 << 23:016x}\n",
        "proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Shared and locked memory as a test says."""
    state = SimpleNamespace(shm=8 * GIB, locked=resource.RLIM_INFINITY)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=1, f_blocks=state.shm))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (state.locked, state.locked))
    return state


def card(driver="580.95.05", count=8):
    return SimpleNamespace(count=count, driver=lambda: driver)


def seen(root, gpu=None, cuda="13.0", visible=8):
    return {one.what: (one.found, one.todo) for one in findings(gpu, cuda, visible, root)}


def test_a_container_is_known_by_its_marks(root):
    assert in_container(root)
    (root / ".dockerenv").unlink()
    assert not in_container(root)
    (root / "proc/1/cgroup").write_text("0::/system.slice/docker-abc.scope\n")
    assert in_container(root)


def test_where_nothing_is_held_back_there_is_nothing_to_do(root):
    assert seen(root, card()) == {
        "/dev/shm": ("8 GiB", None),
        "memlock": ("unlimited", None),
        "SYS_NICE": ("held", None),
        "counters": ("may be read", None),
        "PID 1": ("tini", None),
        "GPUs": ("torch sees 8 of 8", None),
        "driver": ("580.95.05, torch is built for CUDA 13.0", None),
    }


def test_what_is_held_back_names_the_flag(root, limits):
    limits.shm, limits.locked = 64 * 2**20, 8 * 2**20
    (root / "proc/1/comm").write_text("bash\n")
    (root / "proc/self/status").write_text("CapEff:\t00000000a80425fb\n")  # Docker's default
    found = seen(root, card("570.1"), visible=1)
    assert found["memlock"][0] == "8 MiB"
    todos = {what: todo for what, (_, todo) in found.items()}
    assert todos["/dev/shm"] == "--shm-size 8G"
    assert todos["memlock"].startswith("--ulimit memlock=-1 ")
    assert todos["SYS_NICE"].startswith("--cap-add SYS_NICE ")
    assert todos["counters"].startswith("--cap-add SYS_ADMIN ")
    assert todos["PID 1"].startswith("--init")
    assert todos["GPUs"].startswith("--gpus all")
    assert todos["driver"].startswith("a driver 580 or newer")


@pytest.mark.parametrize(
    ("driver", "cuda", "old"),
    [("580.65.06", "13.1", False), ("575.51.03", "13.0", True), ("525.60.13", "12.9", False), ("520.1", "12.1", True)],
)
def test_a_driver_is_held_against_the_cuda_of_torch(root, driver, cuda, old):
    assert (seen(root, card(driver), cuda=cuda)["driver"][1] is not None) == old


def test_what_cannot_be_read_is_left_out_or_said(root, monkeypatch):
    shutil.rmtree(root / "proc")

    def gone(path):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "statvfs", gone)
    assert seen(root, card(None), cuda=None) == {
        "/dev/shm": ("is not there (No such file or directory)", "--shm-size 8G"),
        "memlock": ("unlimited", None),
        "PID 1": ("unknown", "--init: nothing reaps the orphaned processes of a worker"),
        "GPUs": ("torch sees 8 of 8", None),
    }


def test_no_gpu_is_a_finding_where_torch_is_for_gpus(root):
    found, todo = seen(root, cuda="13.0", visible=0)["GPUs"]
    assert (found, todo.split("?")[0]) == ("none is visible", "was --gpus all given")
    assert "GPUs" not in seen(root, cuda=None, visible=0), "a build for CPUs is meant to have none"


# ── the files ──────────────────────────────────────────────────────────────────────────────────────


def test_hadolint_has_nothing_to_say_of_the_dockerfile():
    tool = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [tool, "--no-color", "--failure-threshold", "info", ROOT / "docker/Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_image_is_built_of_files_that_are_there_and_not_ignored():
    words = [line.split() for line in (ROOT / "docker/Dockerfile").read_text().splitlines()]
    copied = {one for line in words if line[:1] == ["COPY"] and "--from" not in line[1] for one in line[1:-1]}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_the_interpreter_is_that_of_the_base_image_whichever_is_chosen():
    text = (ROOT / "docker/Dockerfile").read_text()
    (named,) = re.findall(r"--python (\S+)", text)
    assert named == "/usr/local/bin/python3", "where images of python:3.x have it"


def test_every_flag_of_the_command_lines_has_its_purpose():
    text = (ROOT / "docs/containers.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^docker run .*$", text, re.MULTILINE)
    used = {word for line in lines for word in line.split() if re.match("--?[a-z]", word)}
    rows = "".join(re.findall(r"^\| (`-.*?) \|", text, re.MULTILINE))
    assert len(lines) == 2
    assert used - set(re.findall(r"(?<=`)--?[a-z-]+", rows)) == set()


def test_any_user_may_write_to_the_volumes():
    text = (ROOT / "docker/Dockerfile").read_text()
    volumes = json.loads(re.search(r"^VOLUME (.*)$", text, re.MULTILINE)[1])
    assert re.search(r"mkdir -m 1777 (\S+ \S+)$", text, re.MULTILINE)[1].split() == volumes, "whoever --user names"


def test_a_machine_that_cannot_build_is_told_so(tmp_path):
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
    env = {"PATH": str(tmp_path)}
    bash = shutil.which("bash")
    done = subprocess.run([bash, ROOT / "docker/build.sh"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "docker/build.sh: not built here: none of docker, podman, buildah answers\n"
    assert (ROOT / ".ci/run").read_text().count("\ndocker/build.sh || [ $? -eq 3 ]\n") == 1, "which is no failure of CI"


@pytest.fixture
def build(tmp_path):
    """docker/build.sh with tools that write down how they are called, and fail as a test says."""
    log = tmp_path / "log"

    def run(*words, tools=("docker",), fails=""):
        for tool in tools:
            (tmp_path / tool).write_text(
                f"#!{shutil.which('bash')}\n"
                f'echo "{tool} $*" >> {log}\n'
                f'if [ "{tool} $1" = "{fails}" ]; then echo "{tool}: no such daemon" >&2; exit 1; fi\n'
                'if [ "$1" = from ]; then echo a-container; fi\n'
            )
            (tmp_path / tool).chmod(0o755)
        (tmp_path / "dirname").symlink_to(shutil.which("dirname"))
        done = subprocess.run(
            [shutil.which("bash"), ROOT / "docker/build.sh", *words],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        return done, log.read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ((), "attnbench"),
        (("--target", "runtime"), "attnbench"),
        (("--target", "devel"), "attnbench-devel"),
        (("--build-arg", "TORCH=2.11.0", "--target=devel"), "attnbench-devel"),
    ],
)
def test_each_target_has_an_image_of_its_own_which_is_started(build, words, image):
    done, calls = build(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert calls == [
        "docker info",
        " ".join(["docker build -f docker/Dockerfile -t", image, *words, "."]),
        f"docker run --rm {image} attnbench --version",
        f"docker run --rm {image} attnbench doctor",
    ]


def test_a_tool_that_does_not_answer_says_why_and_the_next_one_builds(build):
    done, calls = build(tools=("docker", "buildah"), fails="docker info")
    assert done.returncode == 0
    assert done.stderr == "docker/build.sh: docker does not answer: docker: no such daemon\n"
    assert calls == [
        "docker info",
        "buildah info",
        "buildah build -f docker/Dockerfile -t attnbench .",
        "buildah from attnbench",
        "buildah run a-container -- attnbench --version",
        "buildah run a-container -- attnbench doctor",
        "buildah rm a-container",
    ]


@pytest.mark.parametrize("fails", ["docker build", "docker run"])
def test_an_image_that_cannot_be_built_or_started_is_a_failure(build, fails):
    done, calls = build(fails=fails)
    assert (done.returncode, done.stderr) == (1, "docker: no such daemon\n")
    assert calls[-1].startswith(fails)


def test_the_image_has_every_extra_and_the_ray_that_is_tested():
    text = (ROOT / "docker/Dockerfile").read_text()
    offered = re.search(r"extras: '\.\[(.*)\]'", (ROOT / "README.md").read_text())[1]
    assert re.search(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)[1] == offered
    ray = re.search(r"^ARG RAY=(.*)$", text, re.MULTILINE)[1]
    assert f" ray=={ray}\n" in (ROOT / "Makefile").read_text()
    assert "ray==" not in (ROOT / "requirements.lock").read_text(), "two versions would be no constraint"
