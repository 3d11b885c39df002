"""Other packages' names: their signatures, held against their sources where these are installed, and what is refused."""

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from .interpreter import interpreted

SIGNATURES = tomllib.loads(Path(__file__).with_name("compat_signatures.toml").read_text())["signature"]
COMPAT = "attnbench.kernels.compat"
NAMES = [f"{one['module']}.{one['function']}" for one in SIGNATURES]


def parameters_of(source: str, function: str) -> list[str] | None:
    """Parameters of a function as written in a module's source, without annotations; nothing is imported."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            given = node.args
            assert not any((given.posonlyargs, given.kwonlyargs, given.vararg, given.kwarg))
            bare = len(given.args) - len(given.defaults)
            return [
                x.arg if place < bare else f"{x.arg}={ast.unparse(given.defaults[place - bare])}"
                for place, x in enumerate(given.args)
            ]
    return None


def installed_source(module: str, paths: list[str] | None = None) -> str | None:
    """Source of an installed module, found without importing the package it is of."""
    top, *rest = module.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top, paths)
    if spec is None:
        return None
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [root.joinpath(*rest).with_suffix(".py") for root in roots] if rest else [Path(spec.origin or "")]
    return next((file.read_text() for file in files if file.is_file()), None)


def drifted(entry: dict[str, Any], paths: list[str] | None = None) -> list[str]:
    """Installed modules whose signature is another than the one written down."""
    found = {module: installed_source(module, paths) for module in entry["modules"]}
    return [
        module
        for module, source in found.items()
        if source is not None and parameters_of(source, entry["function"]) != entry["parameters"]
    ]


@pytest.mark.parametrize("entry", SIGNATURES, ids=NAMES)
def test_signatures_are_theirs(entry):
    function = getattr(importlib.import_module(f"{COMPAT}.{entry['module']}"), entry["function"])
    changed = {text.partition("=")[0]: text for text in entry.get("ours", [])}
    wanted = [changed.get(text.partition("=")[0], text) for text in entry["parameters"]]
    ours = inspect.signature(function).parameters.values()
    assert {one.kind for one in ours} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert [one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in ours] == wanted


@pytest.mark.parametrize("entry", SIGNATURES, ids=NAMES)
def test_installed_packages_have_the_signatures_written_down(entry):
    assert not drifted(entry), f"{entry['version']} was written down; another is installed"


def test_an_installed_package_with_another_signature_is_noticed(tmp_path):
    entry = SIGNATURES[NAMES.index("hstu_attn.hstu_attn_varlen_func")]
    package = tmp_path / "hstu_attn"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs a GPU')")
    interface = package / "hstu_attn_interface.py"
    interface.write_text(f"import cuda\ndef {entry['function']}({', '.join(entry['parameters'])}): pass")
    assert drifted(entry, [str(tmp_path)]) == []
    interface.write_text(f"def {entry['function']}({', '.join(entry['parameters'])}, softcap=0.0): pass")
    assert drifted(entry, [str(tmp_path)]) == ["hstu_attn.hstu_attn_interface"]


def test_names_are_imported_when_asked_for():
    code = f"""
import sys, {COMPAT} as compat
assert "torch" not in sys.modules
assert all(callable(getattr(compat, name)) for name in compat.__all__)
assert "transformers" not in sys.modules and not hasattr(compat, "attention")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def modules():
    names = ("flash_attn", "flash_attn_interface", "hstu", "hstu_attn", "generative_recommenders")
    with interpreted(*(f"{COMPAT}.{name}" for name in names)) as found:
        yield dict(zip(names, found, strict=True))


class HammerKernel(enum.Enum):
    TRITON = "TRITON"


def call(modules: Any, name: str, **changes: Any) -> Any:
    """A small valid call with some arguments changed."""
    module, _, function = name.rpartition(".")
    q = torch.randn(24, 2, 16)
    ends = torch.tensor([0, 9, 24], dtype=torch.int32)
    given: dict[str, Any] = {"q": q, "k": q, "v": q}
    takes = inspect.signature(getattr(modules[module], function)).parameters
    if "varlen" in function:
        given |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 15, "max_seqlen_k": 15}
    elif function == "hstu_mha":
        given |= {"seq_offsets": ends, "max_seq_len": 15, "alpha": 0.25}
    else:
        given = {key: x[None] for key, x in given.items()}
    if module == "hstu":
        given |= dict.fromkeys(("seqused_q", "seqused_k", "num_contexts", "num_targets")) | {"scaling_seqlen": -1}
    assert set(given) | set(changes) <= set(takes)
    return getattr(modules[module], function)(**given | changes)


@pytest.mark.parametrize("kind", ["numpy", "tensor"])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_flags_are_taken_as_the_packages_take_them(modules, name, kind):
    """Their C++ reads NumPy's numbers and one-element tensors as numbers, and NumPy's flags."""
    import numpy as np

    def of(value):
        if isinstance(value, bool):
            return np.bool_(value)
        return np.int64(value) if kind == "numpy" else torch.tensor(value)

    module, _, function = name.rpartition(".")
    takes = inspect.signature(getattr(modules[module], function)).parameters
    given: dict[str, Any] = dict.fromkeys({"max_seqlen_q", "max_seqlen_k", "max_seq_len"} & {*takes}, 15)
    given |= {"scaling_seqlen": 7} if "scaling_seqlen" in takes else {}
    given |= {"contextual_seq_len": 2} if "contextual_seq_len" in takes else {}
    given |= {"causal": True} if "causal" in takes and function != "hstu_mha" else {}
    given |= {"deterministic": True} if "deterministic" in takes else {}
    torch.manual_seed(0)
    truth = call(modules, name, **given | ({"window_size": (4, 0)} if "window_size" in takes else {}))
    torch.manual_seed(0)
    others = {key: of(value) for key, value in given.items()}
    others |= {"window_size": (of(4), of(0))} if "window_size" in takes else {}
    assert torch.equal(call(modules, name, **others), truth)


@pytest.mark.parametrize("name", [one for one in NAMES if "varlen" in one or "mha" in one])
@pytest.mark.parametrize("value", [True, 15.0, "15", "floating", "many"])
def test_what_is_no_number_there_is_refused(modules, name, value):
    value = {"floating": torch.tensor(15.0), "many": torch.tensor([15, 15])}.get(value, value)
    key = "max_seq_len" if "mha" in name else "max_seqlen_k"
    with pytest.raises(ValueError, match=rf"{key}=.* (is not supported|cannot be used); a (whole number|Python int)"):
        call(modules, name, **{key: value})


HAS_VALUES = {
    "q": None, "k": None, "v": None, "cu_seqlens_q": None, "cu_seqlens_k": None, "seq_offsets": None,
    "max_seqlen_q": 20, "max_seqlen_k": 20, "max_seq_len": 20, "softmax_scale": 0.3, "alpha": 0.5, "causal": True,
    "window_size": (-1, 0), "deterministic": True, "return_attn_probs": True, "scaling_seqlen": 7, "max_attn_len": 4,
    "num_targets": torch.tensor([1, 2], dtype=torch.int32), "num_contexts": 2, "contextual_seq_len": 2,
}  # fmt: skip
"Arguments that do something, with another value."
REFUSED: dict[str, Any] = {
    "dropout_p": 0.1, "softcap": 15.0, "alibi_slopes": torch.ones(2), "block_table": torch.zeros(2, 1, dtype=torch.int32),
    "qv": torch.ones(1), "q_descale": torch.ones(1), "k_descale": torch.ones(1), "v_descale": torch.ones(1),
    "attention_chunk": 8, "num_splits": 4, "pack_gqa": True, "sm_margin": 4, "seqused_q": torch.ones(2),
    "seqused_k": torch.ones(2), "target_group_size": 2, "rab": torch.ones(1), "has_drab": True, "func": torch.ones(1),
    "kv_cache": torch.ones(1), "page_offsets": torch.ones(1), "page_ids": torch.ones(1), "last_page_lens": torch.ones(1),
    "cu_seqlens_t": torch.ones(1), "quant_mode": 0, "dropout_pr": 0.1, "attn_scale": torch.ones(1),
    "min_full_attn_seq_len": 3, "kernel": "TRITON", "sort_by_length": 2, "enable_tma": "yes",
}  # fmt: skip
"Arguments that our kernels have nothing for, with a value of theirs that is refused."


def sorted_out(entry: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters that do something, and those that are refused, with values."""
    names = [text.partition("=")[0] for text in entry["parameters"]]
    does, refused = dict(HAS_VALUES), dict(REFUSED)
    if entry["function"] == "hstu_mha":
        refused["causal"] = not does.pop("causal")
        names.remove("training")  # says whether there is dropout, which there is not
    assert set(names) <= does.keys() | refused.keys()
    return {name: does[name] for name in names if name in does}, {
        name: refused[name] for name in names if name in refused
    }


@pytest.mark.parametrize("entry", SIGNATURES, ids=NAMES)
def test_what_does_nothing_is_refused_by_name(modules, entry):
    for parameter, value in sorted_out(entry)[1].items():
        with pytest.raises(ValueError, match=rf"^{entry['function']}: {parameter}=.* is not supported; "):
            call(modules, f"{entry['module']}.{entry['function']}", **{parameter: value})


@pytest.mark.parametrize("entry", SIGNATURES, ids=NAMES)
def test_other_arguments_do_something(modules, entry):
    """Another value gives another result: but bounds of lengths, and what says how gradients are added up."""
    name, hstu = f"{entry['module']}.{entry['function']}", "hstu_attn" in entry["function"]
    usual = {"window_size": (-1, 0)} if hstu else {}

    def result(**changes: Any) -> Any:
        torch.manual_seed(0)
        return call(modules, name, **usual | changes)

    plain = result()
    for parameter, value in sorted_out(entry)[0].items():
        if (
            value is None
            or parameter in ("deterministic", "max_seqlen_k")
            or (parameter == "max_seqlen_q" and not hstu)
        ):
            continue
        changes = {parameter: value}
        if parameter == "max_seqlen_q":
            changes["max_seqlen_k"] = value
        if parameter == "window_size" and hstu:
            changes[parameter] = (-1, -1)
        found = result(**changes)
        assert isinstance(found, tuple) or not torch.equal(found, plain), parameter


def test_values_that_leave_an_argument_out_are_taken(modules):
    call(modules, "flash_attn.flash_attn_func", dropout_p=0, softcap=0, window_size=[-1, -1])
    call(modules, "flash_attn_interface.flash_attn_func", num_splits=0)
    call(modules, "hstu.hstu_attn_varlen_func", window_size=[-1, 0], num_contexts=0)
    mha = "generative_recommenders.hstu_mha"
    call(modules, mha, kernel=HammerKernel.TRITON, sort_by_length=True, enable_tma=True)
    call(modules, mha, dropout_pr=0.3, training=False)


def test_what_attention_probs_are(modules):
    """FlashAttention 2 has lse and an empty tensor, ∞ for a query without keys; 3 has lse, -∞ there."""
    q, k = torch.randn(1, 5, 2, 16), torch.randn(1, 2, 2, 16)
    two, three = (
        modules[name].flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
        for name in ("flash_attn", "flash_attn_interface")
    )
    assert torch.equal(two[0], three[0])
    assert (two[0][:, :3] == 0).all()
    assert two[1].shape == (1, 2, 5)
    assert (two[1][..., :3] == torch.inf).all()
    assert (three[1][..., :3] == -torch.inf).all()
    assert torch.equal(two[1][..., 3:], three[1][..., 3:])
    assert (len(two), len(three), two[2].numel()) == (3, 2, 0)
    packed = call(modules, "flash_attn.flash_attn_varlen_func", return_attn_probs=True)
    assert packed[1].shape == (2, 24)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_contexts": torch.tensor([1, 2])}, r"num_contexts=a tensor \(2,\) is not supported; None, or one number"),
        ({"window_size": (3, 5)}, r"window_size=\(3, 5\) is not supported; .*\(w, w\)"),
        ({"window_size": (0, 0)}, r"window_size=\(0, 0\) is not supported"),
        ({"num_contexts": 2, "window_size": (4, 4)}, r"window_size=\(4, 4\) is not supported; \(-1, 0\) with contexts"),
        ({"max_seqlen_q": 20}, r"max_seqlen_q=20 is not supported; at most max_seqlen_k=15"),
        ({"kv_cache": torch.ones(1)}, r"kv_cache=.*; None; hstu_paged_attention supports pages"),
    ],
)
@pytest.mark.parametrize("module", ["hstu", "hstu_attn"])
def test_hstu_says_what_it_takes_instead(modules, module, changes, words):
    with pytest.raises(ValueError, match=f"^hstu_attn_varlen_func: {words}"):
        call(modules, f"{module}.hstu_attn_varlen_func", **changes)


def test_gaps_in_the_last_dim_are_copied_as_there(modules):
    q = torch.randn(1, 16, 2, 20).transpose(1, 3)
    found = modules["flash_attn"].flash_attn_func(q, q, q)
    assert torch.equal(found, modules["flash_attn"].flash_attn_func(*[q.contiguous()] * 3))


def test_a_compiled_caller_is_one_graph(modules):
    torch._dynamo.reset()

    def run(q):
        return modules["flash_attn"].flash_attn_func(q, q, q, causal=True).sum()

    q = torch.randn(1, 20, 2, 16)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(q), run(q))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_refusals_are_the_same_words_while_traced(modules, fullgraph):
    torch._dynamo.reset()

    def run(q):
        return modules["flash_attn"].flash_attn_func(q, q, q, dropout_p=0.1)

    with pytest.raises(Exception, match=r"flash_attn_func: dropout_p=0.1 is not supported; 0.0"):
        torch.compile(run, fullgraph=fullgraph, backend="aot_eager")(torch.randn(1, 20, 2, 16))


def test_docs_name_every_module():
    text = (Path(__file__).parents[2] / "docs" / "kernels" / "using.md").read_text()
    assert not [one["module"] for one in SIGNATURES if not re.search(rf"`{one['module']}`", text)]
