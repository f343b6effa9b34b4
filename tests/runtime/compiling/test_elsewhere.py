"""Programs that the helper process compiles for this one: the same values, its errors, and its absence."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lazytpu.options import options
from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.programs import TRAFFIC, program_key
from lazytpu.runtime.cache.store import CacheWarning, store
from lazytpu.runtime.compiling import elsewhere
from lazytpu.runtime.compiling.elsewhere import HelperLost, Ticket
from lazytpu.runtime.errors import CompileError
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.module_options import set_members
from lazytpu.runtime.xla.program import Program
from tests.runtime.cache.test_programs import QR
from tests.runtime.compiling.modules import chain, endless, helpers_of, parse

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture(autouse=True)
def helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Helpers of this test, which end with it."""
    mine = elsewhere._Helpers()
    monkeypatch.setattr(elsewhere, "_helpers", mine)
    with options(compile_after_exit=0):
        yield mine
        mine.leave()


def give(module: ir.Module, name: str = "step") -> Ticket:
    return elsewhere.compile(module, program_key(module), name=name)


def until(happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (result := happened()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return result


def compiling() -> int:
    """Return the process that compiles for this one, after waiting for it."""
    (making,) = until(store().making)
    (helper,) = helpers_of(os.getpid())
    assert (making.about["for"], making.by.split()[1]) == (os.getpid(), str(helper))
    return helper


def test_remote_program_equals_a_local_one():
    module = chain(40)
    assert elsewhere.available(module)
    hits, misses = TRAFFIC.hits, TRAFFIC.misses
    ticket = give(module)
    assert ticket.wait(60) and ticket.done
    taken = ticket.seconds
    obtained = ticket.result()
    assert obtained.compiled and 0 < obtained.milliseconds < 1e3 * taken and ticket.seconds == taken
    assert (TRAFFIC.hits - hits, TRAFFIC.misses - misses) == (0, 1), "it was not there"
    x = client.to_device(np.linspace(0, 1, 64, dtype=np.float32))
    (expected,) = Program.compile(module).run([x])
    (got,) = obtained.program.run([x])
    assert np.array_equal(client.to_host(got), client.to_host(expected))
    again = give(module).result()
    assert not again.compiled and (TRAFFIC.hits - hits, TRAFFIC.misses - misses) == (1, 1)
    assert store().making() == [] and store().verify() == []


def test_program_larger_than_the_cache_is_sent():
    module = chain(41)
    misses = TRAFFIC.misses
    with options(cache_limit=2000):
        obtained = give(module).result()
    assert obtained.compiled and obtained.milliseconds > 0
    assert not store().has(programs.KIND, program_key(module))
    assert TRAFFIC.misses == misses + 1
    x = client.to_device(np.linspace(0, 1, 64, dtype=np.float32))
    (expected,) = Program.compile(module).run([x])
    (got,) = obtained.program.run([x])
    assert np.array_equal(client.to_host(got), client.to_host(expected))


def test_one_helper_compiles_in_order(helpers: Any):
    tickets = [give(chain(n), f"chain of {n}") for n in (60, 5)]
    first = helpers.current
    assert tickets[1].wait(60) and tickets[0].done
    assert [ticket.result().program.name for ticket in tickets] == ["chain of 60", "chain of 5"]
    assert helpers.current is first is not None


def test_refusal_of_xla_is_a_compile_error_with_its_message():
    bad = "func.func public @main(%x: tensor<f32>) -> tensor<f32> { %0 = stablehlo.custom_call @no_such(%x) : " \
          "(tensor<f32>) -> tensor<f32> return %0 : tensor<f32> }"  # fmt: skip
    with pytest.raises(CompileError, match=r"could not compile wrong: .*no_such"):
        give(parse(bad), "wrong").result()
    assert give(chain(3)).result().compiled, "the helper goes on"


def test_lapack_is_available_and_callbacks_are_not(monkeypatch: pytest.MonkeyPatch):
    module = parse(QR)
    assert elsewhere.available(module)
    (got,) = give(module).result().program.run([client.to_device(np.eye(4, dtype=np.float32))])
    assert np.array_equal(np.abs(client.to_host(got)), np.eye(4))
    monkeypatch.setattr("lazytpu.runtime.xla.host_functions.called_by", lambda module: ["xla_ffi_python_cpu_callback"])
    assert not elsewhere.available(module)


def test_programs_of_a_job_are_not_available():
    """The helper has no client of the job, and would compile them for one replica."""
    module = chain(3)
    with module.context:
        set_members(module, [0, 1])
    assert not elsewhere.available(module)


def test_no_helper_without_a_cache_on_disk(tmp_path: Path):
    with options(cache_dir=None):
        assert not elsewhere.available(chain(3))


def test_killed_helper_is_lost_and_the_next_program_gets_another():
    ticket = give(endless())
    os.kill(compiling(), signal.SIGKILL)
    with pytest.raises(HelperLost, match="step was not compiled in the helper process: that process ended"):
        ticket.result()
    assert until(lambda: store().making() == []), "a list of the living"
    module = chain(4)
    assert give(module).result().compiled
    ticket = give(endless())
    os.kill(compiling(), signal.SIGTERM)
    with pytest.raises(HelperLost):
        ticket.result()
    assert not elsewhere.available(module), "two were lost, and there is no third"
    module = chain(6)
    assert programs.obtain(module, program_key(module)).compiled and store().verify() == []


def test_error_of_the_helper_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    wrong = tmp_path / "child.py"
    wrong.write_text("import os\nos.fork() and os._exit(0)\nraise SystemExit('no luck today')\n")
    monkeypatch.setattr("lazytpu.runtime.compiling.helper.CHILD", wrong)
    with pytest.raises(HelperLost, match=r"that process ended, saying: no luck today|Broken pipe"):
        give(chain(3)).result()


def test_program_with_another_key_is_left_to_this_process():
    module = chain(3)
    ticket = elsewhere.compile(module, "ab" * 32, name="step")
    with pytest.raises(HelperLost, match="would find it as"):
        ticket.result()
    assert store().entries() == []


def test_helper_has_the_options_of_this_process(monkeypatch: pytest.MonkeyPatch):
    before = program_key(chain(3))
    monkeypatch.setitem(programs.OPTIONS, "xla_backend_optimization_level", 0)
    assert program_key(chain(3)) != before
    assert give(chain(3)).result().compiled


def test_damaged_entry_is_lost_with_a_warning(empty_cache: Path):
    ticket = give(chain(5))
    assert ticket.wait(60)
    (file,) = (empty_cache / "entries").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(CacheWarning, match="damaged"), pytest.raises(HelperLost, match=r"not in .* any more"):
        ticket.result()


def test_interrupted_wait_changes_nothing():
    ticket = give(chain(600))
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ticket.wait(60)
    assert ticket.wait(60) and ticket.result().compiled


def test_idle_helper_ends_and_the_next_program_starts_another(helpers: Any):
    assert give(chain(3)).result().compiled
    first = helpers.current
    helpers.heard(first, {"outcome": "idle"})
    assert helpers.current is None
    assert give(chain(4)).result().compiled and helpers.current is not first
    assert helpers.losses == 0


def test_busy_helper_stays(helpers: Any):
    ticket = give(chain(40))
    first = helpers.current
    helpers.heard(first, {"outcome": "idle"})  # sent before the request arrived
    assert helpers.current is first and ticket.result().compiled
