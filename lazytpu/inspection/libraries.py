"""`lazytpu-show pack` and `lazytpu-show unpack`: compiled programs in one file, for another machine."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lazytpu.inspection.cached import cache_of
from lazytpu.inspection.commands import CACHE, Command, argument
from lazytpu.inspection.recorded import HERE, check, dumped, stored
from lazytpu.runtime.cache.library import pack, unpack
from lazytpu.runtime.cache.store import Store
from lazytpu.runtime.cache.translation import environment
from lazytpu.runtime.children import cleaning_up
from lazytpu.runtime.errors import PlatformError
from lazytpu.runtime.tpu.ahead import compile_dumps


def _pack(args: argparse.Namespace) -> int:
    """Run `pack`. Returns 1 if a program could not be compiled for the topology."""
    if (args.topology is None) != (args.dump is None):
        raise ValueError("--topology NAME and --dump DUMP, a folder that LAZYTPU_DUMP=DUMP wrote, go together")
    if (args.kernels is None) != (not args.commands) or (args.kernels and args.topology):
        raise ValueError(
            "--kernels CHIP and --run COMMAND, a script whose programs are packed, go together, without --topology"
        )
    check(args.commands)
    if args.out.is_dir() or not args.out.parent.is_dir():  # before scripts run for minutes
        raise ValueError(f"{args.out} cannot be written: it is a folder, or its folder does not exist")
    with cleaning_up():
        return _write(args)


def _write(args: argparse.Namespace) -> int:
    """Write the pack. Returns 1 if a program could not be compiled for the topology."""
    if args.topology is None and args.kernels is None:
        return _say_packed(cache_of(args), args.out)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.topology is not None:
            return _pack_dumps(args.topology, [args.dump], folder, args.out)
        if args.kernels == HERE:
            return _say_packed(stored(args.commands, folder), args.out)
        return _pack_dumps(args.kernels, dumped(args.commands, args.kernels, folder), folder, args.out)


def _pack_dumps(topology: str, dumps: Sequence[Path], folder: Path, out: Path) -> int:
    """Compile the programs of dumps for a topology, in a cache in `folder`, and pack them."""
    try:
        report = compile_dumps(topology, dumps, folder / "cache")
    except PlatformError as error:
        raise ValueError(error) from error
    print("\n".join(report))
    _say_packed(Store(folder / "cache"), out)
    return int(any(": not compiled: " in line for line in report))


def _say_packed(cache: Store, out: Path) -> int:
    count = pack(cache, out)
    print(f"{count:,} entries are in {out}, {out.stat().st_size:,} bytes")
    return 0


def _unpack(args: argparse.Namespace) -> int:
    """Run `unpack`. Returns 1 if a program was refused."""
    result = unpack(cache_of(args), args.file, environment())
    print(result)
    return int(bool(result.refused))


COMMANDS = {
    "pack": Command(
        _pack,
        "write compiled programs to one file: those of a cache, of a dump, or of scripts that it runs",
        (
            argument("out", type=Path, metavar="OUT", help="the file to write, a zip"),
            argument(
                "--topology",
                metavar="NAME",
                help="compile the programs of DUMP for a TPU topology, such as v6e:2x2, which this machine need not "
                "have",
            ),
            argument("--dump", type=Path, metavar="DUMP", help="with --topology: what LAZYTPU_DUMP=DUMP wrote"),
            argument(
                "--kernels",
                metavar="CHIP",
                help="run scripts, as they are and op by op, and write their programs for a chip: v6e, v6e:2x2 or "
                f"another TPU, which this machine need not have, or {HERE}, this machine",
            ),
            argument(
                "--run",
                dest="commands",
                action="append",
                default=[],
                metavar="COMMAND",
                help="with --kernels: a script and its arguments, or -m and a module; may be repeated",
            ),
            CACHE,
        ),
    ),
    "unpack": Command(
        _unpack,
        "add the programs of such a file to a cache",
        (argument("file", type=Path, metavar="FILE"), CACHE),
        "Adds the programs of a file to a cache. Those for another environment are refused, with what differs. They "
        "are machine code that your scripts will run: only unpack files from people you trust.",
    ),
}
