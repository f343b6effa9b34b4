"""Forked children of a process that used the device."""

from __future__ import annotations

from tests import zygote

CODE = """
import os, sys, warnings
import torch, lazytpu
import torch.distributed as dist
warnings.simplefilter("ignore")
x = torch.ones(3).to("tpu") + 1
assert x.tolist() == [2, 2, 2]
pid = os.fork()
if pid == 0:
    status = 1
    try:
        torch.manual_seed(1)
        assert torch.tpu._is_in_bad_fork() and (torch.ones(3) + 1).sum() == 6
        store = dist.HashStore()
        begin = lambda: dist.init_process_group("tpu", store=store, rank=0, world_size=1)
        for use in (lambda: (x + 1).tolist(), begin):
            try:
                use()
            except RuntimeError as error:
                assert "Cannot re-initialize tpu in forked subprocess" in str(error), error
            else:
                raise AssertionError("nothing was raised")
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
assert not torch.tpu._is_in_bad_fork() and (x + 1).tolist() == [3, 3, 3]
"""


def test_children_get_an_error_and_parents_continue() -> None:
    zygote.run(["-c", CODE], check=True, timeout=120, finalizes=True)
