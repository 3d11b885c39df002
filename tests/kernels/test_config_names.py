"""Names of launch configurations mean what they meant: shipped names by their fields, whole spaces by a digest.

``config_names.json`` was written by the parsers that each family had of its own, before they shared one; the digest of
flash's defaults was taken anew when the backward of 256 dims got another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest

from attnbench.backends.registry import all_backends
from attnbench.kernels.flash.config import backward, defaults, forward, space
from attnbench.kernels.hstu.dense import configs as dense
from attnbench.kernels.hstu.paged import configs as paged
from attnbench.workloads.base import load_workload

KEPT = json.loads(Path(__file__).with_name("config_names.json").read_text(encoding="utf-8"))
ADDED = {"sharers": 2, "dims": "padded", "weights": "held"}
NEWER = ("b64x64w8s1-atomic-tma-ws", "b64x64w8s2-atomic-tma-ws")
"How configurations of flash begin that there were not then."
CARDS, DIMS, SEQLENS = ((0, 0), (8, 0), (9, 0), (10, 0)), (64, 128, 256), (512, 2048, 4096, 8192)


def is_newer(short):
    """Whether a configuration of flash is one that there was not then."""
    return short.startswith(NEWER) or "-pieces" in short


def digest(found):
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def without_added(values):
    """Fields as there were then: one that was added since is left out where it has the default."""
    return {name: value for name, value in values.items() if name not in ADDED or value != ADDED[name]}


def held(config):
    return None if config is None else without_added(asdict(config))


def candidates():
    return {config.short: held(config) for config in space.candidates()}


def forward_spaces():
    return {
        f"{card} {item} {dim}": [
            config.short for config in space.space(space.Shape(dim=dim, dim_v=dim, item_bytes=item, capability=card))
        ]
        for card, item, dim in product(CARDS, (2, 4), DIMS)
    }


def backward_spaces():
    return {
        f"{card} {item} {dim} {deterministic}": {
            config.short: asdict(config)
            for config in backward.backward_space(card, item, dim, dim, deterministic=deterministic)
            if not is_newer(config.short)
        }
        for card, item, dim, deterministic in product(CARDS, (2, 4), DIMS, (False, True))
    }


def flash_defaults():
    found = {}
    for card, item, dim, seqlen, flag, hopper in product(CARDS, (2, 4), DIMS, SEQLENS, (False, True), (False, True)):
        found[f"{card} {item} {dim} {seqlen} {flag} {hopper}"] = [
            held(defaults.forward_config(card, item, dim, seqlen, right=flag, hopper=hopper)),
            *(
                asdict(
                    backward.backward_config(card, item, dim, deterministic=deterministic, packed=flag, hopper=hopper)
                )
                for deterministic in (False, True)
            ),
        ]
    return found


def dense_defaults():
    return {
        f"{card} {item} {dim} {seqlen}": [
            asdict(dense.forward_config(card, item, dim, seqlen)),
            *(asdict(dense.backward_config(card, item, dim, seqlen, deterministic=one)) for one in (False, True)),
            held(dense.hopper_forward_config(card, item, dim, dim, seqlen)),
            held(dense.hopper_columns_config(card, item, dim, dim, seqlen)),
        ]
        for card, item, dim, seqlen in product(CARDS, (2, 4), DIMS, SEQLENS)
    }


def paged_defaults():
    return {
        f"{card} {item} {dim} {page}": asdict(paged.default_config(card, item, dim, page))
        for card, item, dim, page in product(CARDS, (2, 4), DIMS, (32, 64, 128))
    }


def listed(name):
    backend = all_backends()[name]
    workload = load_workload(backend.workload)
    found = {}
    for mode, dim in product(("fwd", "bwd", "fwd-bwd"), DIMS):
        axes = ("headdim",) if workload.name == "attention" else ("attn_dim", "linear_dim")
        case = workload.case({**dict.fromkeys(axes, dim), "mode": mode, "dtype": "bf16"})
        found[f"{mode} {dim}"] = {
            config.short: without_added(config.values) for config in backend.configs(case) if not is_newer(config.short)
        }
    return found


SPACES = {
    "flash candidates": candidates,
    "flash forward spaces": forward_spaces,
    "flash backward spaces": backward_spaces,
    "flash defaults": flash_defaults,
    "dense defaults": dense_defaults,
    "paged defaults": paged_defaults,
    **{name: lambda name=name: listed(name) for name in ("flash-triton", "hstu-triton", "hstu-bsa-triton")},
}
TABLES = {
    "flash forward": (defaults.TABLE, "forward", forward.ForwardConfig),
    "flash backward": (backward.TABLE, "backward", backward.BackwardConfig),
    "paged": (paged.TABLE, "forward", paged.PagedConfig),
    **{
        f"dense {name}": (dense.TABLE, name, kind)
        for name, kind in (
            ("forward", dense.ForwardConfig),
            ("hopper_forward", dense.ForwardConfig),
            ("rows", dense.RowConfig),
            ("columns", dense.ColumnConfig),
            ("atomic", dense.ColumnConfig),
            ("hopper_atomic", dense.ColumnConfig),
        )
    },
}


@pytest.mark.parametrize("name", SPACES)
def test_a_space_has_the_names_and_fields_it_had(name):
    assert digest(SPACES[name]()) == KEPT["digests"][name]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_of_defaults_has_the_fields_it_had(name):
    table, kernel, kind = TABLES[name]
    rows = [row for row in table.rows(kernel) if not is_newer(row["config"])]
    assert len(rows) == len(KEPT["rows"][name])
    for row, fields in zip(rows, KEPT["rows"][name], strict=True):
        config = kind.parse(row["config"])
        assert config.short == row["config"]
        assert kind.parse(config.full) == config
        assert {field: value for field, value in held(config).items() if field != "atomic"} == fields


@pytest.mark.parametrize(
    ("name", "dim", "mode"),
    [
        (name, dim, mode)
        for name in ("flash-triton", "hstu-triton", "hstu-bsa-triton")
        for dim in (1, 33, 60, 256)
        for mode in ("fwd", "bwd")
    ],
)
def test_the_default_can_be_named_whatever_the_shape(name, dim, mode):
    backend = all_backends()[name]
    workload = load_workload(backend.workload)
    axes = ("headdim",) if workload.name == "attention" else ("attn_dim", "linear_dim")
    for seqlen, dtype in product((16, 100, 4096), ("bf16", "fp32")):
        case = workload.case({**dict.fromkeys(axes, dim), "mode": mode, "dtype": dtype, "seqlen": seqlen})
        default = backend.default_of(case)
        assert backend.config_of(default.short, case) == default


def test_a_shape_that_no_kernel_takes_has_no_configurations_and_no_default():
    for name, axes in (("flash-triton", {"headdim": 300}), ("hstu-triton", {"attn_dim": 300})):
        backend = all_backends()[name]
        for mode in ("fwd", "bwd"):
            case = load_workload(backend.workload).case({**axes, "mode": mode})
            assert (list(backend.configs(case)), backend.default_of(case)) == ([], None)


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in ("flash-triton", "hstu-triton", "hstu-bsa-triton") for mode in ("fwd", "bwd")],
)
def test_every_listed_name_is_read_back_and_the_default_is_one(name, mode):
    backend = all_backends()[name]
    case = load_workload(backend.workload).case({"mode": mode, "dtype": "bf16"})
    configs = list(backend.configs(case))
    for config in configs[:: 1 if len(configs) < 50 else 25]:
        assert backend.config_of(config.short, case) == config
    default = backend.default_of(case)
    assert backend.config_of(default.short, case) == default
