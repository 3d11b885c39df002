"""``hstu-meta-triton``: Meta's Triton kernels for HSTU attention, from a checkout of generative-recommenders.

They are on no package index: ``--path`` or ``ATTNBENCH_GENERATIVE_RECOMMENDERS`` names the folder of the checkout, or
the package is on the Python path.  Their autotuner runs in the first call, once for each length.  Sequences are
not sorted by length, and nothing is cast or copied in a call.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Launch, Machine, module_exists
from attnbench.backends.hstu import HstuBackend, Operands
from attnbench.errors import Unavailable, Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.hstu.case import HstuCase
    from attnbench.workloads.hstu.inputs import HstuInputs

VARIABLE = "ATTNBENCH_GENERATIVE_RECOMMENDERS"
PACKAGE = "generative_recommenders"
MODULE = f"{PACKAGE}.ops.triton.triton_hstu_attention"


class HstuMetaTriton(HstuBackend):
    """Causal; outputs are divided by the length that also bounds the sequences."""

    name = "hstu-meta-triton"
    title = "HSTU, Meta generative-recommenders (Triton)"
    install = f"{VARIABLE}=folder of a checkout of meta-recsys/generative-recommenders"
    tested = "NVIDIA H200, torch 2.11"
    module = MODULE
    checkout = VARIABLE
    distribution = PACKAGE
    compiles = True

    def probe(self) -> None:
        """Look at the folder, what its files import, and the Python path, without importing anything.

        Raises:
            Unavailable: saying which of them is missing.
        """
        folder = _folder(self.name)
        if folder is None:
            if not module_exists(MODULE):
                raise Unavailable(
                    f"{self.name}: module={PACKAGE} is not on the Python path and {VARIABLE} is not set; {self.install}"
                )
            return
        missing = sorted(name for name in _needed(folder, _file(folder)) if not module_exists(name))
        if missing:
            raise Unavailable(
                f"{self.name}: {VARIABLE}={folder} needs {', '.join(missing)}, which this Python does "
                f"not have; pip install {' '.join(missing)}"
            )

    def check(self, case: HstuCase, machine: Machine) -> None:
        """Refuse what the library cannot take.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        for name, fits, accepted in (
            ("causal", case.causal, "true"),
            ("delta_q", case.delta_q is None, "none"),
            ("scaling_seqlen", case.scaling_seqlen == case.seqlen, f"seqlen={case.seqlen}"),
            (
                "lengths",
                all(shape.length >= case.contextual_len + shape.targets for shape in case.sequences),
                "sequences that hold contextual_len and their targets",
            ),
        ):
            if not fits:
                raise Unsupported(
                    refusal(self.name, name, str(getattr(case, name)).lower(), "is not supported", accepted)
                )

    @contextmanager
    def session(self, case: HstuCase, inputs: HstuInputs) -> Iterator[Launch]:
        """The function behind the library's dispatcher, without TMA, as its own default has it."""
        attention = _import(self.name, _folder(self.name))
        offsets, targets, reach = inputs.seq_offsets, inputs.num_targets, case.max_attn_len or 0

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(
                N=case.seqlen,
                alpha=case.alpha,
                q=q,
                k=k,
                v=v,
                seq_offsets=offsets,
                num_targets=targets,
                max_attn_len=reach,
                contextual_seq_len=case.contextual_len,
                sort_by_length=False,
                enable_tma=False,
            )

        yield Operands(case, inputs).launch(attend, notes=("enable_tma=False, sort_by_length=False",))


def _folder(who: str) -> Path | None:
    """The checkout that is named, made sure of; None where none is named."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise Unavailable(f"{who}: {VARIABLE}={named} is no folder; a checkout of generative-recommenders")
    if not _file(folder).is_file():
        raise Unavailable(f"{who}: {VARIABLE}={named} holds no {_file(Path())}; a checkout of generative-recommenders")
    return folder


def _file(folder: Path) -> Path:
    return folder.joinpath(*MODULE.split(".")).with_suffix(".py")


def _needed(folder: Path, file: Path, known: set[Path] | None = None) -> set[str]:
    """Packages that a file of the checkout imports, itself or through others of the checkout, read and not run.

    What stands in a ``try`` may be missing.
    """
    known = set() if known is None else known
    known.add(file)
    found: set[str] = set()
    body = list(ast.parse(file.read_text(encoding="utf-8")).body)
    while body:
        node = body.pop()
        if isinstance(node, ast.If):
            body += [*node.body, *node.orelse]
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
            else []
        )
        for name in names:
            first = name.partition(".")[0]
            if first != PACKAGE:
                found |= {first} - set(sys.stdlib_module_names)
            elif (inner := folder.joinpath(*name.split(".")).with_suffix(".py")).is_file() and inner not in known:
                found |= _needed(folder, inner, known)
    return found


def _import(who: str, folder: Path | None) -> Any:
    """Their function; the folder is on the Python path while they are imported, and not longer."""
    import importlib

    path = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder.resolve()))
    try:
        module = importlib.import_module(MODULE)
        common = importlib.import_module(f"{PACKAGE}.common")
    except Exception as error:  # an edge: another package may fail in any way
        where = f"{VARIABLE}={folder}" if folder else "the Python path"
        raise Unavailable(
            f"{who}: {MODULE} does not import from {where}: {type(error).__name__}: "
            f"{' '.join(str(error).split())}; a checkout that fits this torch and Triton"
        ) from error
    finally:
        sys.path[:] = path
    if (by_length := getattr(common, "set_use_runtime_max_seq_len", None)) is not None:
        by_length(True)  # otherwise whatever length comes first is tuned for all
    return module.triton_hstu_mha
