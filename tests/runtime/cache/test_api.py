"""`lazytpu.cache`, and its counters in `lazytpu.metrics()`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lazytpu
from lazytpu.options import options


def run_a_program(size: int) -> list[float]:
    """Run a new program for each size: programs in memory are not looked up on disk."""
    x = torch.arange(float(size)).to("tpu")
    with options(buckets="off"):
        return (x.cos() * 3 + 0.125).tolist()


def test_entries_are_listed(empty_cache: Path):
    assert lazytpu.cache.directory == empty_cache
    assert lazytpu.cache.size == 0 and lazytpu.cache.entries() == []
    before = lazytpu.metrics()
    assert lazytpu.cache.stats["misses"]["program"] == 0
    run_a_program(801)
    (listed,) = lazytpu.cache.entries("program")
    assert listed.about["name"] == "run_a_program"
    assert lazytpu.cache.size == sum(entry.size for entry in lazytpu.cache.entries())
    assert lazytpu.cache.stats["stored"]["program"] == lazytpu.cache.stats["misses"]["program"] == 1
    assert lazytpu.metrics()["cache_misses"] == before["cache_misses"] + 1
    assert lazytpu.metrics()["cache_hits"] == before["cache_hits"]
    assert lazytpu.cache.verify() == []


def test_clearing_keeps_loaded_programs(empty_cache: Path):
    expected = run_a_program(802)
    assert lazytpu.cache.clear() >= 2, "the program, and which trace it is of"
    assert lazytpu.cache.entries() == []
    assert run_a_program(802) == expected


def test_evicting_by_limit(empty_cache: Path):
    run_a_program(803)
    assert lazytpu.cache.evict() == 0
    with options(cache_limit=0):
        assert lazytpu.cache.evict() == 0, "0 is no limit"
    with options(cache_limit=1):
        assert lazytpu.cache.evict() >= 2
    assert lazytpu.cache.size == 0


def test_resetting_the_metrics_resets_the_cache_counters(empty_cache: Path):
    run_a_program(804)
    lazytpu.reset_metrics()
    assert lazytpu.metrics()["cache_hits"] == lazytpu.metrics()["cache_misses"] == 0


def test_repr_names_the_folder(empty_cache: Path):
    assert repr(lazytpu.cache) == f"<lazytpu.cache in {empty_cache}>"
    with options(cache_dir="off"):
        assert repr(lazytpu.cache) == "<lazytpu.cache: off>"
        assert lazytpu.cache.directory is None and lazytpu.cache.size == 0 and lazytpu.cache.clear() == 0


def test_package_has_no_other_attributes():
    with pytest.raises(AttributeError, match="module 'lazytpu' has no attribute 'cashe'"):
        lazytpu.cashe  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
