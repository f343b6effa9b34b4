"""`lazytpu-show pack` and `lazytpu-show unpack`: compiled programs in one file, for another machine."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from lazytpu.inspection.cached import cache_of
from lazytpu.inspection.commands import CACHE, Command, argument
from lazytpu.runtime.cache.library import pack, unpack
from lazytpu.runtime.cache.store import Store
from lazytpu.runtime.cache.translation import environment
from lazytpu.runtime.errors import PlatformError
from lazytpu.runtime.tpu.ahead import compile_dump


def _pack(args: argparse.Namespace) -> int:
    """Run `pack`. Returns 1 if a program could not be compiled for the topology."""
    if (args.topology is None) != (args.dump is None):
        raise ValueError("--topology NAME and --dump DUMP, a folder that LAZYTPU_DUMP=DUMP wrote, go together")
    if args.topology is None:
        return _say_packed(cache_of(args), args.out)
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = compile_dump(args.topology, args.dump, Path(folder) / "cache")
        except PlatformError as error:
            raise ValueError(error) from error
        print("\n".join(report))
        _say_packed(Store(Path(folder) / "cache"), args.out)
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
        "write the compiled programs of a cache to one file",
        (
            argument("out", type=Path, metavar="OUT", help="the file to write, a zip"),
            argument(
                "--topology",
                metavar="NAME",
                help="compile the programs of DUMP for a TPU topology, such as v6e:2x2, which this machine need not "
                "have",
            ),
            argument("--dump", type=Path, metavar="DUMP", help="with --topology: what LAZYTPU_DUMP=DUMP wrote"),
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
