"""The variables that libtpu reads when it is loaded, as far as a machine without a TPU can test them."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from lazytpu.runtime.errors import PlatformError
from lazytpu.runtime.xla import chips, slices
from lazytpu.runtime.xla.slices import Slice
from tests import zygote

ROOT = Path(__file__).resolve().parents[3]
NAMES = (*chips.variables(0, 0, ["localhost:1"], "1,1,1"), "TPU_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
FOUR = [f"10.0.0.1:{port}" for port in (8476, 8477, 8478, 8479)]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all variables, and restore them after the test."""
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in NAMES})
    monkeypatch.setattr(slices, "here", lambda: Slice(1, None))


def told() -> dict[str, str]:
    return {name: os.environ[name] for name in NAMES if name in os.environ}


def test_four_ranks_of_a_machine():
    os.environ |= {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    chips.together(1, FOUR)
    assert told() == {
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "TPU_VISIBLE_CHIPS": "1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_ADDRESSES": ",".join(FOUR),
        "TPU_PROCESS_PORT": "8477",
        "CLOUD_TPU_TASK_ID": "1",
    }


def test_ranks_of_several_machines(monkeypatch: pytest.MonkeyPatch):
    """The chip is numbered within its machine, the process within the job; the slice gives the arrangement of the
    chips."""
    monkeypatch.setattr(slices, "here", lambda: Slice(2, (2, 2, 2)))
    os.environ |= {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    chips.together(6, [f"10.0.0.{host}:{port}" for host in (1, 2) for port in range(1, 5)])
    assert (os.environ["TPU_VISIBLE_CHIPS"], os.environ["CLOUD_TPU_TASK_ID"]) == ("2", "6")
    assert os.environ["TPU_PROCESS_BOUNDS"] == "2,2,2"
    assert os.environ["TPU_PROCESS_PORT"] == "3"


def test_ranks_without_a_launcher_are_on_this_machine():
    chips.together(3, FOUR)
    assert os.environ["TPU_VISIBLE_CHIPS"] == "3"


def test_variables_of_the_user_are_kept():
    user_variables = {"TPU_VISIBLE_DEVICES": "3", "TPU_PROCESS_BOUNDS": "4,1,1", "TPU_PROCESS_PORT": "77"}
    os.environ |= user_variables
    assert chips.address("10.0.0.1") == "10.0.0.1:77"
    chips.together(0, FOUR)
    assert {name: os.environ[name] for name in user_variables} == user_variables
    assert "TPU_VISIBLE_CHIPS" not in os.environ
    assert os.environ["CLOUD_TPU_TASK_ID"] == "0"


def test_several_chips_for_a_rank_are_refused():
    os.environ["TPU_VISIBLE_CHIPS"] = "2,3"
    with pytest.raises(PlatformError, match="is 2,3 in rank 0, and a rank drives one chip"):
        chips.together(0, FOUR)


def test_unknown_arrangement_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PlatformError, match=r"the job has 3 ranks.*slice of 1 machine:.*set TPU_PROCESS_BOUNDS"):
        chips.together(0, FOUR[:3])
    monkeypatch.setattr(slices, "here", lambda: Slice(4, (4, 4, 1)))
    with pytest.raises(PlatformError, match=r"the job has 4 ranks.*slice of 4 machines with 16 chips:"):
        chips.together(0, FOUR)


def test_process_without_a_group(monkeypatch: pytest.MonkeyPatch):
    chips.alone()
    assert not told(), "libtpu knows best"
    monkeypatch.setattr(slices, "here", lambda: Slice(4, None))
    with pytest.raises(PlatformError, match=r"one of 4 of a TPU slice.*torchrun --nnodes 4.*TPU_PROCESS_BOUNDS=1,1,1"):
        chips.alone()
    os.environ["TPU_PROCESS_BOUNDS"] = "1,1,1"
    chips.alone()


def test_rank_without_a_group_takes_its_own_chip():
    os.environ |= {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    chips.alone()
    assert os.environ["TPU_VISIBLE_CHIPS"] == "1"
    assert os.environ["TPU_PROCESS_BOUNDS"] == os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert re.fullmatch(r"localhost:\d+", os.environ["TPU_PROCESS_ADDRESSES"])


LOADED = """
import json, os
from jax._src.lib import xla_client
def load(name, path):
    raise RuntimeError(json.dumps({name: value for name, value in os.environ.items() if "TPU_" in name}))
xla_client.load_pjrt_plugin_dynamically = load
import torch
torch.ones(1, device="tpu")
"""


def test_variables_are_set_before_libtpu_is_loaded():
    rank = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "LAZYTPU_PLATFORM": "tpu"}
    done = zygote.run(["-c", LOADED], env=os.environ | rank, cwd=ROOT)
    (seen,) = re.findall(r"RuntimeError: .*?(\{.*?\})", done.stderr)[:1]
    assert json.loads(seen)["TPU_VISIBLE_CHIPS"] == "1"


def test_one_machine_of_a_slice_is_refused_before_libtpu_is_loaded():
    machine = {"TPU_WORKER_HOSTNAMES": "a,b", "LAZYTPU_PLATFORM": "tpu"}
    done = zygote.run(["-c", LOADED], env=os.environ | machine, cwd=ROOT)
    assert "PlatformError: this machine is one of 2 of a TPU slice" in done.stderr
    assert "load_pjrt_plugin_dynamically" not in done.stderr


REAL = """
import os, pathlib, sys, time
from jax._src.lib import _jax, xla_client
import libtpu
from lazytpu.runtime.xla import chips
rank, folder, *addresses = sys.argv[1:]
chips.together(int(rank), addresses)
xla_client.load_pjrt_plugin_dynamically("tpu", libtpu.get_library_path())
_jax.initialize_pjrt_plugin("tpu")
pathlib.Path(folder, rank).touch()
while len(os.listdir(folder)) < 2:  # it keeps what it has taken until the other has come so far
    time.sleep(0.01)
"""


def test_second_rank_does_not_meet_the_lock_of_libtpu(tmp_path: Path):
    """The real library, on a machine without a TPU: it takes its lock when it is initialized."""
    pytest.importorskip("libtpu")
    machine = {"LOCAL_WORLD_SIZE": "2", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    ranks = [
        zygote.Process(
            ["-c", REAL, rank, str(tmp_path), *FOUR[:2]], env=os.environ | machine | {"LOCAL_RANK": rank}, cwd=ROOT
        )
        for rank in ("0", "1")
    ]
    try:
        while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            time.sleep(0.01)
        assert [rank.wait(1) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            print(*rank.communicate(10))
