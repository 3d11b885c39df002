"""Kernels compiled ahead: those that the real call compiles, by the key under which Triton looks for them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from attnbench.backends.predict import Predictor
from attnbench.errors import Unsupported
from attnbench.kernels import Card, flash_attention, hstu_attention, hstu_bsa_attention, warm, warming
from attnbench.kernels.hstu.paged.api import Step, hstu_paged_append, hstu_paged_attention
from attnbench.kernels.shared.ahead import gathered
from attnbench.kernels.shared.card import stood_in_for
from attnbench.worker.entry import backend_for
from attnbench.workloads.base import load_workload

from .aot import NO_OLDEST, OLDEST

ROOT = Path(__file__).resolve().parents[2]
H200, L40, A100 = Card((9, 0), 132), Card((8, 9), 142), Card((8, 0), 108)
bf16 = torch.bfloat16

RANKING = {"batch": 2, "num_candidates": 40, "cached": 128, "new_tokens": 64, "model": "small"}
SESSIONS = {
    "flash": ("flash-triton", {"headdim": 64, "causal": True, "mode": "fwd-bwd"}),
    "flash, other heads": ("flash-triton", {"headdim": 96, "nheads_kv": 2, "mode": "fwd-bwd", "window": (40, 0)}),
    "flash, packed": ("flash-triton", {"headdim": 64, "lengths": "uniform", "batch": 3, "mode": "fwd-bwd"}),
    "flash, backward alone": ("flash-triton[b64x128w8s2-atomic]", {"headdim": 64, "mode": "bwd"}),
    "quant": ("flash-quant", {"headdim": 64}),
    "quant, packed": ("flash-quant", {"headdim": 80, "lengths": "uniform", "batch": 3}),
    "sparse": ("flash-sparse", {"headdim": 64, "seqlen": 512}),
    "sparse, 8 bit": ("flash-sparse-quant", {"headdim": 64, "seqlen": 512}),
    "sparse, predicted": ("flash-sparse[cdf0.98]", {"headdim": 64, "seqlen": 512}),
    "sparse, predicted along diagonals": ("flash-sparse[anti0.9]", {"headdim": 64, "seqlen": 512}),
    "dense": ("hstu-triton", {"mode": "fwd-bwd", "batch": 2}),
    "dense, jagged": ("hstu-triton", {"mode": "fwd-bwd", "batch": 2, "lengths": "uniform", "num_targets": 5}),
    "dense, few queries": ("hstu-triton", {"batch": 2, "delta_q": 32}),
    "bsa": ("hstu-bsa-triton", {"mode": "fwd-bwd", "batch": 2}),
    "bsa, jagged": ("hstu-bsa-triton", {"batch": 2, "lengths": "zipf"}),
    "ranking": ("serving-paged", RANKING),
    "ranking, graph": ("serving-paged[graph]", RANKING),
    "ranking, nothing cached yet": ("serving-paged[graph]", RANKING | {"cached": 0}),
    "ranking, from host memory": ("serving-paged", RANKING | {"cache": "host-hit"}),
    "ranking, from host memory, graph": ("serving-paged[graph]", RANKING | {"cache": "host-hit"}),
    "ranking, no cache": ("serving-paged[no-cache]", RANKING),
    "ranking, no cache, graph": ("serving-paged[no-cache+graph]", RANKING),
    "ranking, gathered": ("serving-gathered[hstu-triton]", RANKING),
    "ranking, gathered, graph": ("serving-gathered[hstu-triton+graph]", RANKING),
}


def case_of(name: str, shape: dict[str, Any]) -> tuple[Any, Any]:
    """Workload and case of a session."""
    workload = load_workload(backend_for(name.partition("[")[0], None, ()).workload)
    usual = {} if workload.name == "hstu-serving" else {"seqlen": 300, "nheads": 4}
    return workload, workload.case({**usual, "dtype": "bf16", **shape})


def keys_of_session(name: str, shape: dict[str, Any], card: Card, device: str) -> set[str]:
    """Keys of the kernels that a session launches on inputs with values (cpu), or without (meta)."""
    workload, case = case_of(name, shape)
    with gathered(card) as jobs:
        inputs = workload.inputs(case, seed=1, kind="normal", device=device)
        with backend_for(name, case, ()).session(case, inputs) as launch:
            launch.forward()
            if case.mode != "fwd":
                launch.call(case.mode)()
    return set(jobs)


@pytest.mark.parametrize("hopper", [True, False], ids=["sm_90", "before"])
@pytest.mark.parametrize("session", SESSIONS)
def test_a_session_without_values_compiles_what_one_with_values_does(session, hopper, monkeypatch):
    name, shape = SESSIONS[session]
    card = H200 if hopper else L40 if "quant" in name else A100
    # By torch on a CPU; of a card they are kernels.
    monkeypatch.setattr(Predictor, "on", lambda predictor, case, device: partial(predictor._by_kernels, case))
    ahead = keys_of_session(name, shape, card, "meta")
    assert ahead == keys_of_session(name, shape, card, "cpu")
    assert ahead


def test_a_step_in_a_graph_has_kernels_of_its_own():
    """It appends on a branch, after a launch that applies SiLU; launch by launch both are one."""
    by_launch, graph = (keys_of_session(*SESSIONS[name], H200, "meta") for name in ("ranking", "ranking, graph"))
    assert graph - by_launch
    assert len(by_launch) >= 8, "of every layer, not of attention alone"


def test_a_step_from_host_memory_has_the_kernel_that_copies_pages():
    device, host = (
        keys_of_session("serving-paged", RANKING | {"cache": one}, H200, "meta") for one in ("gpu-hit", "host-hit")
    )
    assert len(host - device) == 1
    assert host > device


def test_a_pool_without_memory_has_none_on_the_host():
    workload, case = case_of("serving-paged", RANKING | {"cache": "host-hit"})
    with gathered(H200):
        inputs = workload.inputs(case, seed=1, kind="normal", device="meta")
        cache = inputs.model.make_cache(pages=4, host_pages=2**20)
    assert cache.host.device.type == "meta"


def test_a_step_over_copies_opens_no_session_of_a_backend_that_reads_values():
    workload, case = case_of("serving-gathered", RANKING)
    with gathered(H200) as jobs:
        inputs = workload.inputs(case, seed=1, kind="normal", device="meta")
        with pytest.raises(Unsupported, match="hstu-eager: device=meta has no memory"):
            backend_for("serving-gathered", case, ()).session(case, inputs).__enter__().forward()
    assert jobs, "what the model launches before its first attention"


def rows(*shape: int, offset: int = 0, gap: int = 0, grad: bool = True) -> torch.Tensor:
    """Rows in memory, `offset` elements behind an aligned address, `gap` elements wider than read."""
    *outer, dims = shape
    whole = torch.zeros(*outer, dims + gap, dtype=bf16).flatten()
    whole = torch.cat([torch.zeros(offset, dtype=bf16), whole])
    assert whole.data_ptr() % 16 == 0
    return whole[offset:].view(*outer, dims + gap)[..., :dims].requires_grad_(grad)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paged() -> Step:
    return Step(
        offsets=ints(0, 200, 300),
        cached=ints(70, 64),
        indptr=ints(0, 5, 9),
        indices=ints(*range(9)),
        num_targets=ints(20, 30),
        max_new=200,
        max_cached=128,
    )


CALLS: dict[str, Callable[[], partial[Any]]] = {
    "flash": lambda: partial(flash_attention, *(rows(2, 300, 4, 64) for _ in range(3)), causal=True),
    "not aligned": lambda: partial(flash_attention, *(rows(2, 300, 4, 64, offset=1) for _ in range(3))),
    "8 bytes past": lambda: partial(flash_attention, *(rows(2, 300, 4, 64, offset=4) for _ in range(3))),
    "wide rows": lambda: partial(flash_attention, *(rows(2, 300, 4, 64, gap=8) for _ in range(3))),
    "odd rows": lambda: partial(flash_attention, *(rows(2, 300, 4, 64, gap=1) for _ in range(3))),
    "dense": lambda: partial(hstu_attention, *(rows(300, 4, 64) for _ in range(3)), ints(0, 100, 300), 200),
    "bsa": lambda: partial(hstu_bsa_attention, *(rows(300, 4, 64) for _ in range(3)), ints(0, 100, 300), 200),
    "paged": lambda: partial(
        hstu_paged_attention,
        *(rows(300, 4, 64, grad=False) for _ in range(3)),
        rows(9, 2, 64, 4, 64, grad=False),
        paged(),
        scaling_seqlen=500,
    ),
    "append": lambda: partial(
        hstu_paged_append, *(rows(300, 4, 64, grad=False) for _ in range(2)), rows(9, 2, 64, 4, 64, grad=False), paged()
    ),
}


def keys_of_call(call: partial[Any]) -> set[str]:
    with gathered(H200) as jobs:
        warming._call_with_gradients(call)
    return set(jobs)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_sent_to_the_other_process_compiles_what_the_real_one_does(name):
    call = CALLS[name]()
    (sent,), _, _ = warming._received(warming._packed(((call,), H200, 1)))
    assert {x.device.type for x in sent.args if isinstance(x, torch.Tensor)} == {"meta"}
    assert keys_of_call(sent) == keys_of_call(call)


def test_alignment_strides_and_card_make_other_kernels():
    aligned, odd, wide = (keys_of_call(CALLS[name]()) for name in ("flash", "not aligned", "odd rows"))
    assert not aligned & odd
    assert aligned != wide
    with gathered(A100) as jobs:
        warming._call_with_gradients(CALLS["flash"]())
    assert not aligned & set(jobs)


def test_only_what_asks_for_gradients_has_its_backward_compiled():
    trained = partial(flash_attention, *(rows(2, 300, 4, 64) for _ in range(3)))
    served = partial(flash_attention, *(rows(2, 300, 4, 64, grad=False) for _ in range(3)))
    assert keys_of_call(served) < keys_of_call(trained)


def test_nothing_of_a_planned_call_stays_behind():
    call = CALLS["flash"]()
    keys_of_call(call)
    with pytest.raises(ValueError, match=r"flash_attention: q\.device=cpu has no compiled kernels"):
        call()


def test_kernels_ask_for_their_card_in_one_place():
    """Whoever asks PyTorch itself has another answer while kernels are compiled ahead, and compiles others."""
    for path in (ROOT / "src" / "attnbench" / "kernels").rglob("*.py"):
        if path.name != "card.py":
            assert not re.search(r"get_device_(capability|properties)|device\.type == \"cuda\"", _code(path)), path


def _code(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    # What is neither asked of a card nor compiled for one: autocast's kind of device, fake tensors refused.
    return text if path.name not in ("kept.py", "operators.py") else ""


# ── what is compiled, and found ────────────────────────────────────────────────────────────────────


class LaunchingNowhere:
    """A driver of Triton's on which its ordinary launch, and so its ordinary compilation, goes through."""

    launcher_cls = staticmethod(lambda src, metadata: lambda *arguments: None)
    utils = SimpleNamespace(
        load_binary=lambda *given: (None, None, 0, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 1 << 20},
    )

    def get_current_device(self) -> str:
        return f"nowhere {id(self)}"

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)


@contextmanager
def launched_nowhere() -> Iterator[list[bool]]:
    """Of each kernel that Triton prepares for a launch, whether it was in the cache."""
    found: list[bool] = []
    with pytest.MonkeyPatch.context() as patch, stood_in_for(A100):
        patch.setattr(driver, "_active", LaunchingNowhere())
        patch.setattr(knobs.compilation, "listener", lambda **told: found.append(told["cache_hit"]))
        yield found


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache, of this process and those that it starts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert knobs.cache.dir == str(tmp_path)
    return tmp_path


def test_a_call_after_warm_compiles_nothing(cache):
    heads = [torch.empty(2, 64, 2, 16, dtype=bf16) for _ in range(3)]
    told: list[tuple[int, int]] = []
    done = warm(
        partial(flash_attention, *heads),
        partial(flash_attention, *heads, scale=0.5),  # the same kernel
        card=A100,
        processes=2,
        on_progress=lambda *news: told.append(news),
    )
    assert (done.kernels, done.failed) == (1, 0)
    assert told == [(0, 1), (1, 1)]
    with launched_nowhere() as found:
        flash_attention(*heads)
    assert found == [True]
    with launched_nowhere() as found:
        hstu_attention(*(torch.empty(64, 2, 16, dtype=bf16) for _ in range(3)), ints(0, 64), 64)
    assert found == [False], "this one was never asked for, and the count counts"


LAUNCHED = """
import torch
from functools import partial
from attnbench.kernels import Card, flash_attention, warm
heads = [torch.empty(2, 64, 2, 16, dtype=torch.bfloat16, device="meta")] * 3
assert warm(partial(flash_attention, *heads), card=Card((8, 0), 108)).failed == 0
"""


@pytest.mark.skipif(not OLDEST.exists(), reason=NO_OLDEST)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="Triton 3.6 compiles a launcher for each kernel, by gcc")
def test_with_triton_3_6_the_launcher_in_c_is_compiled_too(tmp_path):
    """Against a library of CUDA's driver that has nothing in it: a launcher is linked, and not run."""
    library, cache = tmp_path / "libcuda.so.1", tmp_path / "cache"
    subprocess.run(["gcc", "-shared", "-x", "c", "-o", library, "/dev/null"], check=True)
    paths = {"PYTHONPATH": os.pathsep.join((str(OLDEST), str(ROOT / "src"))), "TRITON_LIBCUDA_PATH": str(tmp_path)}
    env = {**os.environ, **paths, "TRITON_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", LAUNCHED], env=env, check=True)
    assert len(list(cache.rglob("flash_forward.cubin"))) == 1
    assert len(list(cache.rglob("__triton_launcher*.so"))) == 1


HASHED = """
import importlib, json, pkgutil, sys
from triton.runtime.jit import JITCallable
import attnbench.kernels
from attnbench.kernels.shared.keys import hash_callees_first

for found in pkgutil.walk_packages(attnbench.kernels.__path__, "attnbench.kernels."):
    importlib.import_module(found.name)
ours = [(name, vars(module)) for name, module in sys.modules.items() if name.startswith("attnbench.kernels.")]
functions = {f"{name}.{key}": f for name, there in ours for key, f in there.items() if isinstance(f, JITCallable)}
for name in sorted(functions, reverse=sys.argv[1] == "reverse"):
    hash_callees_first(functions[name])
print(json.dumps({name: f.cache_key for name, f in functions.items()}))
"""


@pytest.mark.parametrize(
    "triton", [pytest.param(OLDEST, marks=pytest.mark.skipif(not OLDEST.exists(), reason=NO_OLDEST)), None]
)
def test_the_key_of_a_kernel_does_not_depend_on_what_was_launched_before(triton):
    paths = [str(ROOT / "src")] if triton is None else [str(triton), str(ROOT / "src")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    keys = [
        json.loads(
            subprocess.run([sys.executable, "-c", HASHED, order], env=env, check=True, stdout=subprocess.PIPE).stdout
        )
        for order in ("forward", "reverse")
    ]
    assert {name for name in keys[0] if keys[0][name] != keys[1][name]} == set()
    assert len(keys[0]) > 200


JOBS = """
import json, os, signal, sys, time
from attnbench.kernels.shared.ahead import Job, compile_all
room = sys.argv[1]

def compiled(name):
    open(f"{room}/{name}.begun", "w").close()
    if name == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "raises":
        raise RuntimeError("no such tile")
    if name == "exits":
        os._exit(3)
    print("what a compiler says is not heard")

ended, most = [], 0
def jobs():
    for number, name in enumerate(["good", "dies", "raises", "exits", "better"]):
        yield Job(name, lambda name=name: compiled(name))

class Kernel: pass
import attnbench.kernels.shared.ahead as ahead
ahead._launchable = lambda kernel: None
compile_all(jobs(), processes=2, on_end=lambda job, done: ended.append((job.key, done)))
print(json.dumps(sorted(ended)))
"""


def test_a_compiler_that_dies_costs_its_kernel_alone(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", JOBS, str(tmp_path)], capture_output=True, text=True, env=env, check=True
    )
    found = dict(json.loads(done.stdout))
    assert found == {"good": True, "better": True, "dies": False, "raises": False, "exits": False}
    assert {path.stem for path in tmp_path.iterdir()} == set(found)
    assert done.stderr == ""


QUERIES = torch.empty(2, 64, 2, 16, dtype=bf16, device="meta")
GOOD = partial(flash_attention, QUERIES, QUERIES, QUERIES)


@pytest.mark.parametrize(
    ("calls", "given", "words"),
    [
        (
            (flash_attention,),
            {},
            r"warm: calls\[0\]=<function .* is not a call of one of our functions; partial\(function, …\)",
        ),
        ((GOOD, partial(print, 3)), {}, r"warm: calls\[1\]=print is not ours; partial\(function, …\) of a function of"),
        ((partial(warm, GOOD),), {}, r"warm: calls\[0\]=warm is not ours"),
        ((partial(QUERIES.add, 1),), {}, r"warm: calls\[0\]=add is not ours"),
        (
            (GOOD, partial(flash_attention, QUERIES)),
            {},
            r"warm: calls\[1\]=flash_attention cannot be called so: missing a required argument: 'k'; the arguments of",
        ),
        (
            (partial(GOOD, size=3),),
            {},
            "warm: .*=flash_attention cannot be called so: got an unexpected keyword argument",
        ),
        (
            (partial(GOOD, cu_seqlens_q=torch.zeros(3).to_sparse()),),
            {},
            r"warm: calls=a tensor \(torch.sparse_coo\) has no memory that a kernel reads; dense ones",
        ),
        ((GOOD,), {"processes": 0}, "warm: processes=0 cannot be used; a whole number from 1, or None"),
        ((GOOD,), {"processes": True}, "warm: processes=True cannot be used"),
        ((GOOD,), {"card": (9, 0)}, r"warm: card=\(9, 0\) is no card; a Card, or None for PyTorch's current one"),
        ((partial(GOOD, forward=lambda: 3),), {}, "warm: calls=.* cannot be sent to another process; plain values and"),
        (
            (partial(flash_attention, QUERIES, QUERIES, QUERIES[:1]),),
            {},
            r"flash_attention: v\.shape=\(1, 64, 2\) does not fit",
        ),
    ],
)
def test_what_cannot_be_warmed_is_refused_in_one_line(calls, given, words, cache):
    with pytest.raises(ValueError, match=words) as refused:
        warm(*calls, **{"card": A100, **given})
    assert "\n" not in str(refused.value)
    assert not list(cache.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_one_has_to_be_named():
    with pytest.raises(ValueError, match="warm: card=None is PyTorch's current card, but there is none; a Card"):
        warm(GOOD)


def test_interpreted_kernels_are_not_compiled(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match="warm: TRITON_INTERPRET=1 has kernels interpreted"):
        warm(GOOD, card=A100)
