"""Programs on disk: the next process loads the programs of an earlier one."""

from __future__ import annotations

import torch

import lazytpu
from lazytpu.doctor.check import check


def _work() -> torch.Tensor:
    x = torch.arange(64.0, device="tpu").reshape(8, 8)
    return (x @ x.t()).softmax(1).sum(0).cpu()


@check()
def written() -> str:
    """A compiled program is written to disk."""
    _work()
    _require_programs()
    entries = lazytpu.cache.entries("program")
    return f"{len(entries)} programs on disk, {sum(entry.size for entry in entries):,} bytes"


@check(fresh=True)
def loaded_again() -> str:
    """The next process loads the program, compiles nothing, and gets the same values."""
    _require_programs()
    result = _work()
    metrics = lazytpu.metrics()
    x = torch.arange(64.0).reshape(8, 8)
    torch.testing.assert_close(result, (x @ x.t()).softmax(1).sum(0), rtol=1e-4, atol=1e-5)
    if metrics["compiles"]:
        raise ValueError(f"{metrics['compiles']} programs were compiled again, {metrics['cache_hits']} were loaded")
    return f"{metrics['cache_hits']} programs loaded, none compiled"


def _require_programs() -> None:
    if not lazytpu.cache.entries("program"):
        raise NotImplementedError("no program is on disk: this client cannot serialize them, so each process compiles")
