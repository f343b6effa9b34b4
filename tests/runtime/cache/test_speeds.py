"""The compile speed that the cache folder remembers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lazytpu
from lazytpu.runtime.cache import folder, speeds
from lazytpu.runtime.cache.speeds import MAX_ENVIRONMENTS, Speed
from lazytpu.runtime.cache.store import store


def file(root: Path) -> Path:
    return root / folder.SPEEDS


def test_next_process_reads_the_measured_ratio(empty_cache: Path) -> None:
    mine = Speed()
    assert mine.ratio() == 1.0
    mine.measured(2.0)
    assert 1.0 < mine.ratio() < 2.0, "one measurement moves it a little"
    assert Speed().ratio() == pytest.approx(mine.ratio(), rel=1e-3)
    for _ in range(30):
        mine.measured(10.0)
    assert mine.ratio() == pytest.approx(10.0, rel=0.05)
    assert Speed().ratio() == pytest.approx(10.0, rel=0.1), "small changes are not worth a write"


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1e6, float("nan"), float("inf")])
def test_measurements_of_a_sleeping_machine_are_ignored(empty_cache: Path, ratio: float) -> None:
    mine = Speed()
    mine.measured(ratio)
    assert mine.ratio() == 1.0
    assert not file(empty_cache).exists()


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\xff\x00", b"[]", b"{", b'{"version": 1}', b'{"version": 0, "ratios": {}}', b'{"version": 1, "ratios": 3}',
     b'{"version": 1, "ratios": {"NAME": {}}}', b'{"version": 1, "ratios": {"NAME": "x"}}', b"[" * 10**5,
     b'{"version": 1, "ratios": {"NAME": NaN}}', b'{"version": 1, "ratios": {"NAME": 1e9}}'],
)  # fmt: skip
def test_damaged_file_is_ignored_and_replaced(empty_cache: Path, damaged: bytes) -> None:
    Speed().measured(3.0)
    file(empty_cache).write_bytes(damaged.replace(b"NAME", speeds._name().encode()))
    mine = Speed()
    assert mine.ratio() == 1.0
    mine.measured(2.0)
    assert Speed().ratio() == pytest.approx(mine.ratio(), rel=1e-3)


def test_file_stays_small(empty_cache: Path) -> None:
    Speed().measured(3.0)
    ratios = {f"{i:016x}": 1.0 for i in range(3 * MAX_ENVIRONMENTS)}
    file(empty_cache).write_text(json.dumps({"version": 1, "ratios": ratios}))
    Speed().measured(2.0)
    kept = json.loads(file(empty_cache).read_text())["ratios"]
    assert len(kept) == MAX_ENVIRONMENTS and f"{3 * MAX_ENVIRONMENTS - 1:016x}" in kept, "the newest"
    assert Speed().ratio() > 1.0


def test_file_is_no_entry_and_is_cleared(empty_cache: Path) -> None:
    Speed().measured(3.0)
    assert store().entries() == []
    store().clear()
    assert not file(empty_cache).exists()


def test_each_folder_has_a_ratio(empty_cache: Path, tmp_path: Path) -> None:
    mine = Speed()
    mine.measured(3.0)
    ratio = mine.ratio()
    with lazytpu.options(cache_dir=tmp_path / "other"):
        assert mine.ratio() == 1.0
    assert mine.ratio() == pytest.approx(ratio, rel=1e-3)
    with lazytpu.options(cache_dir=None):
        mine.measured(2.0)
        assert mine.ratio() > 1.0, "in memory at least"
