"""The helper outlives its parent, after any kind of exit, for the allowed time, and holds no resource of it."""

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

# The start of every script: `give` passes a module to the helper, and waits until its compilation has begun.
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
SLOW = 600  # ops that XLA compiles in a second or two


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


def start(script: str, *arguments: str) -> zygote.Process:
    return zygote.Process(["-c", PRELUDE + script, *arguments], env=environment(), finalizes=True)


def run(script: str, *arguments: str) -> str:
    printed, complaints = start(script, *arguments).communicate(120)
    assert complaints == ""
    return printed


def until(happened: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (result := happened()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return result


NEXT = "obtained = give(chain(int(sys.argv[1]))).result(); print(obtained.compiled)"


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_next_process_hits_a_program_begun_by_the_last(empty_cache: Path, end: str):
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


def test_helper_holds_nothing_of_its_parent_and_ends_in_time(empty_cache: Path, tmp_path: Path):
    """The caller of a script gets its output at once; the helper ends after the allowed seconds."""
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
    parent_ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    (helper,) = helpers_of(int(done.stdout))
    open_files = {os.readlink(entry) for entry in Path(f"/proc/{helper}/fd").iterdir()}
    assert str(tmp_path / "opened") not in open_files and os.readlink(f"/proc/{helper}/cwd") == "/"
    assert os.getsid(helper) != os.getsid(0)
    until(lambda: Store(empty_cache).making() == [])
    assert time.monotonic() - parent_ended > 1 and Store(empty_cache).entries() == []
    with Store(empty_cache).locked("program", "ab" * 32) as held_now:
        assert held_now
    assert not any((empty_cache / "locks").iterdir()), "the next to write sweeps the lock that it left"


def test_zero_seconds_end_it_with_its_parent(empty_cache: Path):
    run("options.compile_after_exit = 0; give(endless()); print(store().making()[0].by)")
    until(lambda: Store(empty_cache).making() == [], 20)


def test_exit_sends_the_current_limit(empty_cache: Path):
    """The setting at the end counts, if there is time to send it."""
    run("give(endless()); options.compile_after_exit = 0; assert len(elsewhere.leave()) == 1")
    until(lambda: Store(empty_cache).making() == [], 20)


def test_changed_setting_is_sent(empty_cache: Path):
    run("give(endless()); options.compile_after_exit = 0; elsewhere.remind()")
    until(lambda: Store(empty_cache).making() == [], 20)


def test_stopped_helper_does_not_block_exit(empty_cache: Path):
    """It reads no message; the requesting process compiles the program."""
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


def test_forked_child_does_not_affect_the_helper(empty_cache: Path):
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


def test_forked_child_has_its_own_helper(empty_cache: Path):
    script = """
first = elsewhere._helpers
give(chain(3)).result()
if os.fork() == 0:
    os._exit(int(elsewhere._helpers is first or elsewhere._helpers.current is not None))
print(os.waitstatus_to_exitcode(os.wait()[1]), give(chain(4)).result().compiled)
"""
    assert run(script) == "0 True\n"


def test_waiting_for_children_does_not_report_the_helper(empty_cache: Path):
    """A script that waits for all its children waits only for its own."""
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


def test_interrupt_from_the_terminal_ends_only_the_parent(empty_cache: Path):
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


def test_tpu_programs_are_compiled_under_the_key_of_their_topology(empty_cache: Path):
    pytest.importorskip("libtpu")
    printed = subprocess.run(
        [sys.executable, "-c", TPU], env=environment(), stdout=subprocess.PIPE, text=True, timeout=240
    )
    assert (printed.returncode, printed.stdout) == (0, "True tpu\n")
