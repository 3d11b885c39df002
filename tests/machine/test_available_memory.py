"""How much memory of the host is left: by the machine, or by a container's limit."""

from __future__ import annotations

import pytest

from attnbench.machine import memory

GIB = 2**30


@pytest.mark.parametrize(
    ("meminfo", "limit", "used", "room"),
    [
        ("MemTotal: 9 kB\nMemAvailable:    41943040 kB\n", None, None, 40 * GIB),
        ("MemAvailable:    41943040 kB\n", str(16 * GIB), str(6 * GIB), 10 * GIB),
        ("MemAvailable:    41943040 kB\n", "max", str(6 * GIB), 40 * GIB),
        ("MemAvailable:    41943040 kB\n", str(2 * GIB), str(3 * GIB), 0),
        ("", None, None, None),
    ],
)
def test_available_memory(tmp_path, monkeypatch, meminfo, limit, used, room):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text(meminfo)
    if limit:
        (tmp_path / "memory.max").write_text(limit + "\n")
        (tmp_path / "memory.current").write_text(used + "\n")
    assert memory.available_memory() == room


@pytest.mark.parametrize("name", ["inactive_file", "total_inactive_file"])
def test_the_file_cache_of_a_container_is_not_in_use(tmp_path, monkeypatch, name):
    """A container that has read a large file is as empty as before."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    folder = tmp_path / "memory" if name.startswith("total") else tmp_path
    folder.mkdir(exist_ok=True)
    files = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if name.startswith("total")
        else ("memory.max", "memory.current")
    )
    for file, text in zip((*files, "memory.stat"), (16 * GIB, 15 * GIB, f"anon 7\n{name} {12 * GIB}"), strict=True):
        (folder / file).write_text(f"{text}\n")
    assert memory.available_memory() == 13 * GIB
    (folder / "memory.stat").write_text("what\n")
    assert memory.available_memory() == 1 * GIB
