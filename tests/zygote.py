"""Run Python programs in forks of a process that has made their imports: `run` works like `subprocess.run`.

A fresh Python takes five seconds of a core until it has imported torch, jax, xDSL and lazytpu and run its first op. A
fork of a process that has only imported them takes a fraction of a second. It creates its own device, and calls its
exit functions as Python does. Python would then free all objects, which takes as long as a short program, since the
fork shares their memory: only with `finalizes`. Tests of imports, of the modules that a process loads, of
PYTHONHASHSEED and of variables that are read during an import start a fresh Python with `subprocess` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The imports of a first training step. None of them creates a device or a thread. jax comes first, since it sets the
# log level of jaxlib.
IMPORTS = ("jax", "lazytpu.wiring", "torch._dynamo", "networkx", "rich", "jaxlib.mlir.dialects.mhlo")
ROOMS = "aten engine frontend.ops frontend.patches frontend.recording frontend.sparse lowering passes".split()
LIMIT = 1 << 20  # bytes of a request
# Read when torch, jax or Python start: a fork cannot follow them.
READ_AT_START = ("JAX_", "MKL_", "OMP_", "TORCH_", "PYTHON")
FOLLOWED = ("PYTHONPATH", "PYTHONWARNINGS")


class Process:
    """`python ARGUMENTS` in a fork: -W options, then -c code, -m module or a path, then its own arguments. With the
    methods of `subprocess.Popen` that tests use; output is text, and there is no input.

    Raises:
        ValueError: `env` has another value than this process for a variable that is read when Python starts.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        finalizes: bool = False,
    ):
        environment = dict(os.environ if env is None else env)
        for name in {*environment, *os.environ}:
            follows = name in FOLLOWED or not name.startswith(READ_AT_START)
            if not follows and environment.get(name) != os.environ.get(name):
                raise ValueError(f"{name} is read when Python starts: use subprocess")
        self.args = [sys.executable, *arguments]
        self.returncode: int | None = None
        self._outputs = os.memfd_create("stdout"), os.memfd_create("stderr")
        self._status, theirs = socket.socketpair()
        request = {"arguments": list(arguments), "environment": environment, "cwd": str(cwd or os.getcwd())}
        request["finalizes"] = finalizes
        with theirs:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*self._outputs, theirs.fileno()])
        self.pid = self._number()

    def _number(self) -> int:
        data = self._status.recv(4)
        assert data, "the server of tests/zygote.py has ended"
        return int.from_bytes(data, "big", signed=True)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, or minus the signal that ended it. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = self._number()
                self._status.close()
            except (TimeoutError, BlockingIOError):
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout) from None
        return self.returncode

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def kill(self) -> None:
        """End it, if it runs still."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait, and read standard output and standard error. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        texts = []
        for output in self._outputs:
            os.lseek(output, 0, os.SEEK_SET)
            with open(output) as file:
                texts.append(file.read())
        return texts[0], texts[1]


def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 300,
    check: bool = False,
    finalizes: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run([sys.executable, *arguments], capture_output=True, text=True, ...)`, in a fork. With `check`, the
    error of a status that is not 0 shows standard error."""
    process = Process(arguments, env=env, cwd=cwd, finalizes=finalizes)
    try:
        printed, complaints = process.communicate(timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    done = subprocess.CompletedProcess(process.args, process.wait(), printed, complaints)
    if check and done.returncode:
        error = subprocess.CalledProcessError(done.returncode, done.args, printed, complaints)
        error.add_note(complaints)
        raise error
    return done


@functools.cache
def _server() -> socket.socket:
    """The connection to the server of this process; it ends with us. Warnings of its imports are errors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-W", "error", __file__, str(theirs.fileno())]
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


# ---- in the server


def _serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for every request until the tests have ended. Returns in the forks: the request, and where to write."""
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:  # a process has ended
                    pid, client = key.data
                    _tell(client, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    continue
                request, files, *_ = socket.recv_fds(requests, LIMIT, 3)
                if not request:
                    requests.close()
                    sys.exit()
                client = socket.socket(fileno=files.pop())
                pid = os.fork()
                if pid == 0:
                    client.close()
                    requests.close()
                    for sibling in filter(None, (watched.data for watched in selector.get_map().values())):
                        sibling[1].close()
                    return json.loads(request), files
                for file in files:
                    os.close(file)
                _tell(client, pid, close=False)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))


def _tell(client: socket.socket, number: int, close: bool = True) -> None:
    with contextlib.suppress(BrokenPipeError):
        client.send(number.to_bytes(4, "big", signed=True))
    if close:
        client.close()


def _become(environment: dict[str, str], cwd: str, files: list[int], started_with: set[str]) -> None:
    """Give the fork its streams, environment and folder, and read the settings from the environment again."""
    for target, file in enumerate(files, 1):
        os.dup2(file, target)
        os.close(file)
    for name in started_with - environment.keys():
        os.environ.pop(name, None)  # a fresh Python would have the variables that imports set
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    from lazytpu.options import options

    type(options).__init__(options, os.environ)


def _warn_as(options: list[str]) -> None:
    """Filter warnings as Python does with these -W options, in place of those of the server."""
    sys.warnoptions[:] = options
    asked_before = warnings.filters.index(("error", None, Warning, None, 0))
    del warnings.filters[asked_before]
    early = warnings.filters[:asked_before]  # by modules, since
    del warnings.filters[:asked_before]
    warnings._processoptions(options)
    warnings.filters[:0] = early
    warnings._filters_mutated()


def _execute(arguments: list[str]) -> None:
    """Execute the program as `__main__`."""
    warn = os.environ.get("PYTHONWARNINGS", "")
    options = [option for option in warn.split(",") if option]
    while arguments[0] == "-W":
        options.append(arguments[1])
        del arguments[:2]
    _warn_as(options)
    program, *remaining = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if program == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = remaining
        runpy._run_module_as_main(remaining[0])
        return
    if program == "-c":
        code, sys.argv = compile(remaining[0], "<string>", "exec"), ["-c", *remaining[1:]]
        sys.path.insert(0, "")
    else:
        code, sys.argv = compile(Path(program).read_bytes(), program, "exec"), [program, *remaining]
        main.__file__ = program
        sys.path.insert(0, str(Path(program).resolve().parent))
    exec(code, main.__dict__)


_status: int | None = None
"""With which this fork exits after its exit functions. None means that Python frees all objects first."""


def _end() -> None:
    """Exit without freeing objects, in a fork that has a status."""
    if _status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status)


def _execute_alone(arguments: list[str]) -> None:
    """Execute the program, and note the status with which Python will exit. At an interrupt it kills itself instead."""
    global _status
    try:
        _execute(arguments)
    except SystemExit as end:
        _status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except Exception:
        _status = 1
        raise
    _status = 0


def _main() -> None:
    atexit.register(_end)  # before all others, and so after them
    started_with = set(os.environ)
    position = sys.path.index(str(Path(__file__).parent))
    del sys.path[position]
    sys.path.insert(0, str(Path(__file__).parents[1]))
    for name in IMPORTS:
        importlib.import_module(name)
    for room in (importlib.import_module(f"lazytpu.{name}") for name in ROOMS):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    del sys.path[0]
    importlib.import_module("lazytpu.runtime.cache.translation").translators()  # reads all source files
    gc.freeze()  # a collection of a fork need not copy all pages
    if "triton" in sys.modules:  # torch brings it with CUDA; at exit it reports its frozen objects as leaks
        atexit.register(gc.unfreeze)
    request, files = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(request["environment"], request["cwd"], files, started_with)
    run = _execute if request["finalizes"] else _execute_alone
    run(request["arguments"])


if __name__ == "__main__":
    _main()
