"""Compiled programs in the store, keyed by their module and environment, and loaded instead of compiled."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from lazytpu.runtime.cache import peers
from lazytpu.runtime.cache.fingerprint import environment, environment_digest
from lazytpu.runtime.cache.foreseen import Foreseen, command, spare_core
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.errors import LoadError
from lazytpu.runtime.xla import client, host_functions
from lazytpu.runtime.xla.mlir import func, ir, passmanager
from lazytpu.runtime.xla.program import Program
from lazytpu.runtime.xla.signature import Signature, from_json, to_json

KIND = "program"

VERSION = 4  # of the format that `save` writes; part of the key

# XLA's debug options for every program, by name; part of the key.
OPTIONS: dict[str, bool | int | str] = {}


@dataclass(frozen=True, slots=True)
class Obtained:
    """A program, whether it was compiled here, and the milliseconds that compiling or loading it took."""

    program: Program
    compiled: bool
    milliseconds: float


class Traffic:
    """Counts of programs that this process loaded from disk, and of those that it had to compile."""

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self._lock = threading.Lock()

    def note(self, *, hit: bool) -> None:
        with self._lock:
            if hit:
                self.hits += 1
            else:
                self.misses += 1

    def reset(self) -> None:
        with self._lock:
            self.hits = self.misses = 0


TRAFFIC = Traffic()


class Programs(WeakValueDictionary[str, Program]):
    """The programs that this process still uses, by key. Threads that want the same one have it made once."""

    def __init__(self) -> None:
        super().__init__()
        self._making: dict[str, threading.Lock] = {}

    def recall(self, key: str) -> Program | None:
        """The program of that key from memory or disk."""
        program = self.get(key) or load(key)
        if program is not None:
            self[key] = program
        return program

    def of(self, module: ir.Module, make: Callable[[str], Program]) -> Program:
        """The program of a module. `make` obtains one that is not in memory, by its key; where that fails, the next
        thread that waits for it tries."""
        key = program_key(module)
        program = self.get(key)
        if program is None:
            with self._making.setdefault(key, threading.Lock()):
                try:
                    program = self.get(key)  # another thread may just be done
                    if program is None:
                        program = self[key] = make(key)
                finally:
                    self._making.pop(key, None)
        return program


def program_key(module: ir.Module) -> str:
    """Return the cache key of a module's program, 64 hexadecimal digits. Modules that differ only in source lines or in
    the names of parameters, values and the program have the same key in the same environment.

    Takes about 1 ms for 500 ops.
    """
    digest = hashlib.sha256(f"{VERSION} {environment_digest()}".encode())
    digest.update(client.options_bytes(OPTIONS))
    digest.update(canonical(module))
    return digest.hexdigest()


def canonical(module: ir.Module) -> bytes:
    """Return the module as bytecode without debug information: locations, names of values, and the module's name."""
    with module.context, ir.Location.unknown():
        copy: Any = module.operation.clone()
        copy.attributes["sym_name"] = ir.StringAttr.get("program")
        for op in copy.regions[0].blocks[0].operations:
            if isinstance(op, func.FuncOp):
                _remove_names(op)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(copy)
        return client.module_bytecode(copy)


def _remove_names(function: func.FuncOp) -> None:
    for which in ("arg_attrs", "res_attrs"):
        if which in function.attributes:
            before = [ir.DictAttr(names) for names in ir.ArrayAttr(function.attributes[which])]
            kept = [{named.name: named.attr for named in names if named.name != "lazytpu.name"} for names in before]
            if any(kept):
                function.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(names) for names in kept])
            else:
                del function.attributes[which]


def obtain(module: ir.Module, key: str, *, name: str = "program", device: int = 0) -> Obtained:
    """Return the program of a module whose `program_key` is `key`: loaded from disk, or compiled and stored. If another
    process of this machine or job is compiling it, wait for that one.

    Raises:
        CompileError: XLA refused the module.
    """
    start = time.perf_counter()
    program = load(key, name=name, device=device)
    if program is None:
        with peers.sought(KIND, key), store().locked(KIND, key, {"name": name}):
            # Look again: a peer, or the last holder of the lock, may have compiled it by now.
            program = load(key, name=name, device=device) if store().has(KIND, key) else None
            if program is None:
                return _compile(module, key, name, device)
    return Obtained(program, False, 1e3 * (time.perf_counter() - start))


def _compile(module: ir.Module, key: str, name: str, device: int) -> Obtained:
    ahead = _foreseen()
    if ahead is not None:
        ahead.missed()
    functions = host_functions.called_by(module)
    start = time.perf_counter()
    program = Program.compile(module, name=name, device=device, options=OPTIONS, key=key)
    elapsed = 1e3 * (time.perf_counter() - start)
    if store().root is not None:
        TRAFFIC.note(hit=False)
        save(program, key, functions, elapsed)
    return Obtained(program, True, elapsed)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An executable with the signature, name and size in bytes from its entry; `members` as in `Program`."""

    executable: client.Executable
    signature: Signature
    name: str
    size: int
    members: tuple[int, ...]


def load(key: str, *, name: str | None = None, device: int = 0, compiled: bool = False) -> Program | None:
    """Load the program of a key from disk, or return None. `name` is for messages, by default the stored name. A
    program that another process has just `compiled` for this one counts as a miss.

    An entry that cannot be loaded is removed, with a warning.
    """
    ahead = _foreseen()
    loaded = None if ahead is None or device else ahead.claim(key)
    loaded = loaded or _load(key, device)
    if loaded is None:
        return None
    if ahead is not None and not loaded.members:
        ahead.used(key, loaded.size)
    TRAFFIC.note(hit=not compiled)
    named, members = name or loaded.name, loaded.members
    return Program(loaded.executable, loaded.signature, name=named, device=device, key=key, members=members)


def unpacked(payload: bytes, about: Mapping[str, Any], key: str, name: str, device: int = 0) -> Program:
    """Load a program that another process has compiled for this one, from the contents of a cache entry.

    Raises LoadError.
    """
    executable = client.deserialize(payload, device=device, options=OPTIONS)
    TRAFFIC.note(hit=False)
    return Program(executable, from_json(about["signature"]), name=name, device=device, key=key)


def _load(key: str, device: int = 0) -> _Loaded | None:
    entry = store().get(KIND, key)
    if entry is None:
        return None
    try:
        if entry.about["environment"] != environment_digest():
            raise LoadError(f"it was compiled for {entry.about.get('made_for')}; here is {dict(environment())}")
        if not host_functions.available(entry.about["functions"]):
            return None  # the entry is valid for processes that have registered these functions
        signature = from_json(entry.about["signature"])
        members = tuple(entry.about.get("members", ()))
        if not client.has_processes(members):
            return None  # the entry is valid for the processes of a job
        executable = client.deserialize(entry.payload, device=device, options=OPTIONS, members=members)
    except (LoadError, KeyError, TypeError, ValueError) as error:
        store().reject(KIND, key, str(error))
        return None
    return _Loaded(executable, signature, str(entry.about.get("name")), len(entry.payload), members)


_AHEAD: list[Foreseen[_Loaded]] = []  # at most one for this process


def foresee() -> Foreseen[_Loaded] | None:
    """Return the preloader of this command, for the caller to `begin`, and note from now on the programs that this run
    uses. None if there is no idle core, or if no list can be kept."""
    called = command() if spare_core() and store().root is not None else None
    if called is None:
        return None
    ahead = Foreseen(store(), called, _load)
    _AHEAD[:] = [ahead]
    return ahead


def foresee_again() -> None:
    """Start preloading over, for a new client."""
    ahead = _foreseen()
    if ahead is not None:
        ahead.again()


def _foreseen() -> Foreseen[_Loaded] | None:
    return _AHEAD[0] if _AHEAD and _AHEAD[0].store is store() else None


def save(program: Program, key: str, functions: Sequence[str], compile_ms: float) -> bool:
    """Store a compiled program that calls these host `functions`. Return whether it is on disk now.

    It is not stored on platforms that cannot serialize, nor if it calls back into Python: the callback is an address of
    this process.
    """
    if not store().writable() or any("callback" in name for name in functions):
        return False
    payload = client.serialize(program.executable)
    if payload is None:
        return False
    about = describe(program.name, program.signature, functions, compile_ms)
    if program.members:
        about["members"] = list(program.members)
    stored = store().put(KIND, key, payload, about)
    ahead = _foreseen()
    if stored and ahead is not None and not program.members:
        ahead.used(key, len(payload))
    return stored


def describe(name: str, signature: Signature, functions: Sequence[str], compile_ms: float) -> dict[str, Any]:
    """Return the description in a program's entry: its signature, this environment, its compile time and its host
    `functions`."""
    return {
        "name": name,
        "environment": environment_digest(),
        "made_for": dict(environment()),
        "compile_ms": round(compile_ms, 1),
        "signature": to_json(signature),
        "functions": list(functions),
    }
