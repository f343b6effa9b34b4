"""What the folder of the cache remembers of how fast this machine compiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lazytpu
from lazytpu.runtime.cache import folder, speeds
from lazytpu.runtime.cache.speeds import MOST, Speeds
from lazytpu.runtime.cache.store import store


def file(root: Path) -> Path:
    return root / folder.SPEEDS


def test_the_next_process_knows_what_was_measured(empty_cache: Path) -> None:
    mine = Speeds()
    assert mine.ratio("whole", 0.6) == 0.6
    mine.measured("whole", 2.0)
    assert mine.ratio("whole", 0.6) == 2.0, "the first measurement is better than a default"
    assert Speeds().ratio("whole", 0.6) == 2.0
    assert Speeds().ratio("quick", 0.6) == 0.6


def test_one_measurement_moves_it_a_little(empty_cache: Path) -> None:
    mine = Speeds()
    mine.measured("whole", 1.0)
    mine.measured("whole", 10.0)
    assert 1.5 < mine.ratio("whole", 0.0) < 3.0
    for _ in range(30):
        mine.measured("whole", 10.0)
    assert mine.ratio("whole", 0.0) == pytest.approx(10.0, rel=0.05)
    assert Speeds().ratio("whole", 0.0) == pytest.approx(10.0, rel=0.1), "small changes are not worth a write"


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1e6, float("nan"), float("inf")])
def test_a_machine_that_slept_is_no_measure(empty_cache: Path, ratio: float) -> None:
    mine = Speeds()
    mine.measured("whole", ratio)
    assert mine.ratio("whole", 0.6) == 0.6
    assert not file(empty_cache).exists()


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\xff\x00", b"[]", b"{", b'{"version": 1}', b'{"version": 0, "ratios": {}}', b'{"version": 1, "ratios": 3}',
     b'{"version": 1, "ratios": {"NAME": 3}}', b'{"version": 1, "ratios": {"NAME": {"whole": "x"}}}',
     b'{"version": 1, "ratios": {"NAME": {"whole": NaN}}}', b'{"version": 1, "ratios": {"NAME": {"whole": 1e9}}}'],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_replaced(empty_cache: Path, damaged: bytes) -> None:
    Speeds().measured("whole", 3.0)
    file(empty_cache).write_bytes(damaged.replace(b"NAME", speeds._name().encode()))
    mine = Speeds()
    assert mine.ratio("whole", 0.6) == 0.6
    mine.measured("whole", 2.0)
    assert Speeds().ratio("whole", 0.6) == 2.0


def test_it_stays_small(empty_cache: Path) -> None:
    Speeds().measured("whole", 3.0)
    others = {f"{i:016x}": {"whole": 1.0} for i in range(3 * MOST)}
    file(empty_cache).write_text(json.dumps({"version": 1, "ratios": others}))
    Speeds().measured("whole", 2.0)
    kept = json.loads(file(empty_cache).read_text())["ratios"]
    assert len(kept) == MOST and f"{3 * MOST - 1:016x}" in kept, "the newest"
    assert Speeds().ratio("whole", 0.6) == 2.0


def test_it_is_no_entry_and_goes_with_the_rest(empty_cache: Path) -> None:
    Speeds().measured("whole", 3.0)
    assert store().entries() == []
    store().clear()
    assert not file(empty_cache).exists()


def test_another_folder_has_ratios_of_its_own(empty_cache: Path, tmp_path: Path) -> None:
    mine = Speeds()
    mine.measured("whole", 3.0)
    with lazytpu.options(cache_dir=tmp_path / "other"):
        assert mine.ratio("whole", 0.6) == 0.6
    assert mine.ratio("whole", 0.6) == 3.0
    with lazytpu.options(cache_dir=None):
        mine.measured("whole", 2.0)
        assert mine.ratio("whole", 0.6) == 2.0, "in memory at least"
