"""`lazytpu.cache`, and what `lazytpu.metrics()` says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lazytpu
from lazytpu.options import options


def run_a_program(size: int) -> list[float]:
    """A program of its own for each size: what this process has in memory is not looked for on disk."""
    x = torch.arange(float(size)).to("tpu")
    with options(buckets="off"):
        return (x.cos() * 3 + 0.125).tolist()


def test_what_is_there(empty_cache: Path):
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


def test_clearing_leaves_what_is_in_use(empty_cache: Path):
    expected = run_a_program(802)
    assert lazytpu.cache.clear() >= 2, "the program, and which trace it is of"
    assert lazytpu.cache.entries() == []
    assert run_a_program(802) == expected


def test_evicting(empty_cache: Path):
    run_a_program(803)
    assert lazytpu.cache.evict() == 0
    with options(cache_limit=0):
        assert lazytpu.cache.evict() == 0, "0 is no limit"
    with options(cache_limit=1):
        assert lazytpu.cache.evict() >= 2
    assert lazytpu.cache.size == 0


def test_resetting_the_metrics_resets_its_counters(empty_cache: Path):
    run_a_program(804)
    lazytpu.reset_metrics()
    assert lazytpu.metrics()["cache_hits"] == lazytpu.metrics()["cache_misses"] == 0


def test_it_says_where_it_is(empty_cache: Path):
    assert repr(lazytpu.cache) == f"<lazytpu.cache in {empty_cache}>"
    with options(cache_dir="off"):
        assert repr(lazytpu.cache) == "<lazytpu.cache: off>"
        assert lazytpu.cache.directory is None and lazytpu.cache.size == 0 and lazytpu.cache.clear() == 0


def test_the_package_has_no_other_attributes():
    with pytest.raises(AttributeError, match="module 'lazytpu' has no attribute 'cashe'"):
        lazytpu.cashe  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
