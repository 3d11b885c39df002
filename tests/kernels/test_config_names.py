"""Names of launch configurations keep their meaning, and defaults change only on purpose.

``config_names.txt.gz`` has every name that was listed, with a hash of its fields; ``config_names.json`` the fields of the
configurations in the tables of defaults, and hashes of the default and the list of each shape.  New names and rows need
nothing.  ``make names`` adds what is new to both files, and refuses where a name has another meaning.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
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
ADDED = {"sharers": 2, "dims": "padded", "weights": "held", "scores": "ss", "sums": "staged", "serial": False}
"Fields that were added since, and the default by which older names keep their meaning."
CARDS, DIMS, SEQLENS = ((0, 0), (8, 0), (9, 0), (10, 0)), (64, 128, 256), (512, 2048, 4096, 8192)


BACKENDS = ("flash-triton", "hstu-triton", "hstu-bsa-triton")
FORWARD_ONLY = ("flash-quant", "flash-sparse", "flash-sparse-quant")


NAMES = Path(__file__).with_name("config_names.txt.gz")
INTENDED = "; if that is intended, run `make names` and commit what it writes"


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


def case_of(workload, mode, dim=None, **values):
    """A case in bf16; a workload without gradients has no mode."""
    axes = ("attn_dim", "linear_dim") if workload.name == "hstu" else ("headdim",)
    modes = {} if workload.name == "sparse" else {"mode": mode}
    return workload.case({**({} if dim is None else dict.fromkeys(axes, dim)), **modes, "dtype": "bf16", **values})


def listed(name):
    backend, found = all_backends()[name], {}
    workload = load_workload(backend.workload)
    for mode, dim in product(("fwd",) if name in FORWARD_ONLY else ("fwd", "bwd", "fwd-bwd"), DIMS):
        configs = backend.configs(case_of(workload, mode, dim))
        found[f"{mode} {dim}"] = {config.short: without_added(config.values) for config in configs}
    return found


def every(found):
    """The configurations of all shapes, by name."""
    return {name: without_added(values) for configs in found.values() for name, values in configs.items()}


LISTED = {
    "flash forward": candidates,
    "flash backward": lambda: every(backward_spaces()),
    **{name: lambda name=name: every(listed(name)) for name in (*BACKENDS, *FORWARD_ONLY)},
}
"""What has names, and which: their fields."""
BY_SHAPE = {
    "flash forward spaces": lambda: kept_only("flash forward", forward_spaces()),
    "flash defaults": flash_defaults,
    "dense defaults": dense_defaults,
    "paged defaults": paged_defaults,
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


def known():
    """Hashes of fields by space and name."""
    found = {space: {} for space in LISTED}
    for line in gzip.decompress(NAMES.read_bytes()).decode().splitlines():
        space, name, fields = line.split("\t")
        found[space][name] = fields
    return found


def kept_only(space, names_by_shape):
    """Names of each shape without those that are newer than the file."""
    there = known()[space]
    return {shape: [name for name in names if name in there] for shape, names in names_by_shape.items()}


def changed(space):
    """Names of a space that are no longer listed, or have other fields."""
    now = LISTED[space]()
    return [name for name, fields in known()[space].items() if name not in now or digest(now[name])[:4] != fields]


@pytest.mark.parametrize("space", LISTED)
def test_a_name_that_was_listed_keeps_its_meaning(space):
    assert len(known()[space]) > 20
    assert changed(space) == [], f"names of {space} are gone or have other fields"


@pytest.mark.parametrize("name", BY_SHAPE)
def test_shapes_have_the_configurations_and_defaults_they_had(name):
    assert digest(BY_SHAPE[name]()) == KEPT["digests"][name], f"{name}: changed for some shape{INTENDED}"


def fields_of(config):
    return {field: value for field, value in held(config).items() if field != "atomic"}


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_a_table_of_defaults_has_the_fields_it_had(name):
    table, kernel, kind = TABLES[name]
    for row in table.rows(kernel):
        config = kind.parse(row["config"])
        assert config.short == row["config"]
        assert kind.parse(config.full) == config
    for short, fields in KEPT["rows"][name].items():
        assert fields_of(kind.parse(short)) == fields


@pytest.mark.parametrize(
    ("name", "dim", "mode"),
    [(name, dim, mode) for name in BACKENDS for dim in (1, 33, 60, 256) for mode in ("fwd", "bwd")],
)
def test_the_default_can_be_named_whatever_the_shape(name, dim, mode):
    backend = all_backends()[name]
    workload = load_workload(backend.workload)
    for seqlen, dtype in product((16, 100, 4096), ("bf16", "fp32")):
        case = case_of(workload, mode, dim, dtype=dtype, seqlen=seqlen)
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
    [*((name, mode) for name in BACKENDS for mode in ("fwd", "bwd")), *((name, "fwd") for name in FORWARD_ONLY)],
)
def test_every_listed_name_is_read_back_and_the_default_is_one(name, mode):
    backend = all_backends()[name]
    case = case_of(load_workload(backend.workload), mode)
    configs = list(backend.configs(case))
    for config in configs[:: 1 if len(configs) < 50 else 25]:
        assert backend.config_of(config.short, case) == config
    default = backend.default_of(case)
    assert backend.config_of(default.short, case) == default


def write():
    """Add what is new to both files.

    Raises:
        SystemExit: a name that was listed is gone, or has other fields.
    """
    gone = [f"{len(names)} of {space}, such as {names[0]}" for space in LISTED if (names := changed(space))]
    if gone:
        sys.exit(f"names are gone or have other fields: {'; '.join(gone)}; restore them, or add a new field to ADDED")
    lines = [
        f"{space}\t{name}\t{digest(fields)[:4]}" for space, now in LISTED.items() for name, fields in now().items()
    ]
    NAMES.write_bytes(gzip.compress("\n".join(sorted(lines)).encode(), mtime=0))
    rows = {
        name: {row["config"]: fields_of(kind.parse(row["config"])) for row in table.rows(kernel)}
        for name, (table, kernel, kind) in TABLES.items()
    }
    old = {name: kept if isinstance(kept, dict) else {} for name, kept in KEPT["rows"].items()}
    kept = {
        "digests": {name: digest(found()) for name, found in BY_SHAPE.items()},
        "rows": {name: old.get(name, {}) | new for name, new in rows.items()},
    }
    Path(__file__).with_name("config_names.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
