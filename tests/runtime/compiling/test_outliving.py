"""The helper outlives its parent, however that ends, for as long as it may, and holds nothing of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lazytpu.runtime.cache.store import Store
from tests import zygote
from tests.runtime.compiling.modules import helpers_of

ROOT = Path(__file__).parents[3]

# What every script begins with: `give` hands a module to the helper, and waits until it is being compiled.
PRELUDE = """
import json, os, signal, sys, time
from lazytpu.options import options
from lazytpu.runtime.cache.programs import program_key
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.compiling import elsewhere
from tests.runtime.compiling.modules import chain, endless

def give(module):
    ticket = elsewhere.compile(module, program_key(module), name="step")
    while not (store().making() or ticket.done):
        time.sleep(0.005)
    return ticket
"""
SLOW = 600  # ops that XLA takes a second or two for


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


def start(script: str, *arguments: str) -> zygote.Process:
    return zygote.Process(["-c", PRELUDE + script, *arguments], env=environment())


def run(script: str, *arguments: str) -> str:
    printed, complaints = start(script, *arguments).communicate(120)
    assert complaints == ""
    return printed


def until(happened: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


NEXT = "obtained = give(chain(int(sys.argv[1]))).result(); print(obtained.compiled)"


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_process_has_begun_is_the_next_ones_hit(empty_cache: Path, end: str):
    ops = SLOW + (end == "sys.exit(0)")
    process = start(f"give(chain({ops})); {end}")
    process.communicate(120)
    assert run(NEXT, str(ops)) == "False\n", "this one waited for the lock, and compiled nothing"
    until(lambda: Store(empty_cache).making() == [])
    assert len(Store(empty_cache).entries("program")) == 1 and Store(empty_cache).verify() == []
    assert not any((empty_cache / "locks").iterdir()) and not any((empty_cache / "temporary").iterdir())


def test_two_processes_compile_a_program_once(empty_cache: Path):
    racing = [start(NEXT, str(SLOW)) for _ in range(2)]
    printed = sorted(process.communicate(120)[0] for process in racing)
    assert printed == ["False\n", "True\n"]


def test_it_holds_nothing_of_its_parent_and_ends_in_time(empty_cache: Path, tmp_path: Path):
    """The caller of a script gets its output at once; the helper is gone after the seconds that it may take."""
    script = (
        PRELUDE
        + f"""
opened = os.open({str(tmp_path / "opened")!r}, os.O_CREAT | os.O_RDWR)
os.set_inheritable(opened, True)
options.compile_after_exit = 3
give(endless())
print(os.getpid())
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    left = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    (helper,) = helpers_of(int(done.stdout))
    held = {os.readlink(entry) for entry in Path(f"/proc/{helper}/fd").iterdir()}
    assert str(tmp_path / "opened") not in held and os.readlink(f"/proc/{helper}/cwd") == "/"
    assert os.getsid(helper) != os.getsid(0)
    until(lambda: Store(empty_cache).making() == [])
    assert time.monotonic() - left > 1 and Store(empty_cache).entries() == []
    with Store(empty_cache).locked("program", "ab" * 32) as held_now:
        assert held_now
    assert not any((empty_cache / "locks").iterdir()), "the next to write sweeps the lock that it left"


def test_zero_ends_it_with_its_parent(empty_cache: Path):
    run("options.compile_after_exit = 0; give(endless()); print(store().making()[0].by)")
    until(lambda: Store(empty_cache).making() == [], 20)


def test_leaving_says_for_how_long(empty_cache: Path):
    """The setting at the end counts, where there is time to say it."""
    run("give(endless()); options.compile_after_exit = 0; assert len(elsewhere.leave()) == 1")
    until(lambda: Store(empty_cache).making() == [], 20)


def test_it_is_reminded_of_a_setting_that_was_changed(empty_cache: Path):
    run("give(endless()); options.compile_after_exit = 0; elsewhere.remind()")
    until(lambda: Store(empty_cache).making() == [], 20)


def test_one_that_is_stopped_keeps_no_process_from_ending(empty_cache: Path):
    """It takes no message; the program that it was to have is compiled by the process that asked."""
    script = """
from threading import Thread
from lazytpu.runtime.compiling import helper
helper.PATIENCE = 1
give(endless())
pid = int(store().making()[0].by.split()[1])
os.kill(pid, signal.SIGSTOP)
huge = elsewhere.Ticket("ab" * 32, "huge", 0)
asking = Thread(target=elsewhere._helpers.give, args=(huge, {"after_exit": 0}, bytes(4 << 20)), daemon=True)
asking.start()
elsewhere.remind()
elsewhere.leave()
os.kill(pid, signal.SIGKILL)
print(huge.wait(60) and huge._answer["outcome"])
"""
    assert run(script) == "lost\n"


def test_a_forked_child_keeps_it_from_nothing(empty_cache: Path):
    process = start(
        """
        options.compile_after_exit = 0
        give(endless())
        if os.fork() == 0:
            for _ in range(600):
                time.sleep(0.1)
                if not store().making():
                    os._exit(0)
            os._exit(1)
        """.replace("\n        ", "\n")
    )
    process.wait(120)
    until(lambda: Store(empty_cache).making() == [], 20)


def test_a_forked_child_has_a_helper_of_its_own(empty_cache: Path):
    script = """
first = elsewhere._helpers
give(chain(3)).result()
if os.fork() == 0:
    os._exit(int(elsewhere._helpers is first or elsewhere._helpers.current is not None))
print(os.waitstatus_to_exitcode(os.wait()[1]), give(chain(4)).result().compiled)
"""
    assert run(script) == "0 True\n"


def test_waiting_for_children_meets_no_helper(empty_cache: Path):
    """A script that waits for all its children gets none of ours."""
    script = """
give(endless())
try:
    os.wait()
except ChildProcessError:
    print("none")
options.compile_after_exit = 0
elsewhere.leave()
"""
    assert run(script) == "none\n"


def test_an_interrupt_of_the_terminal_ends_only_the_parent(empty_cache: Path):
    script = f"""
ticket = give(chain({SLOW}))
try:
    print("begun", flush=True)  # the signal may arrive before this returns
    ticket.result()
except KeyboardInterrupt:
    sys.exit(5)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script], env=environment(), stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"begun\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 5
    assert run(NEXT, str(SLOW)) == "False\n"


TPU = """
import os
from lazytpu.runtime.tpu.tpu_compiler import ALONE
os.environ.update(ALONE)
from lazytpu.runtime.tpu import topologies
topologies.aim_at("v6e:1x1", (1, 1, 1))
from lazytpu.runtime.cache.programs import program_key
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.compiling import elsewhere
from tests.runtime.compiling.modules import chain
assert topologies.here() == ("v6e:1x1", (1, 1, 1))
module = chain(4)
key = program_key(module)
assert elsewhere.available(module)
assert elsewhere.compile(module, key).wait(120)
print(store().has("program", key), store().get("program", key).about["made_for"]["platform"])
"""


def test_for_a_tpu_it_compiles_for_the_topology_under_the_key_that_is_looked_for(empty_cache: Path):
    pytest.importorskip("libtpu")
    printed = subprocess.run(
        [sys.executable, "-c", TPU], env=environment(), stdout=subprocess.PIPE, text=True, timeout=240
    )
    assert (printed.returncode, printed.stdout) == (0, "True tpu\n")
