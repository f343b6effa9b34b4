"""`lazytpu-show pack` and `lazytpu-show unpack`: compiled programs in one file, for another machine."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from lazytpu.options import options
from lazytpu.runtime.cache.library import pack, unpack
from lazytpu.runtime.cache.store import Store, store
from lazytpu.runtime.errors import PlatformError


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pack` and `unpack` to a parser of commands."""
    packing = commands.add_parser("pack", help="write the compiled programs of a cache to one file")
    packing.add_argument("out", type=Path, metavar="OUT", help="the file to write, a zip")
    packing.add_argument(
        "--topology",
        metavar="NAME",
        help="compile the programs of DUMP for a TPU topology, such as v6e:2x2, which this machine need not have",
    )
    packing.add_argument("--dump", type=Path, metavar="DUMP", help="with --topology: what LAZYTPU_DUMP=DUMP wrote")
    packing.set_defaults(run=_pack)
    unpacking = commands.add_parser(
        "unpack",
        help="add the programs of such a file to a cache",
        description="Adds the programs of a file to a cache. Those for another environment are refused, with what "
        "differs. They are machine code that your scripts will run: only unpack files from people you trust.",
    )
    unpacking.add_argument("file", type=Path, metavar="FILE")
    unpacking.set_defaults(run=_unpack)
    for parser in (packing, unpacking):
        parser.add_argument("--dir", type=Path, metavar="DIR", help="the cache (default: that of LAZYTPU_CACHE_DIR)")


def _cache(args: argparse.Namespace) -> Store:
    with options(cache_dir=options.cache_dir if args.dir is None else args.dir):
        cache = store()
    if cache.root is None:
        raise ValueError("there is no cache on disk: LAZYTPU_CACHE_DIR is empty or off; name one with --dir")
    return cache


def _pack(args: argparse.Namespace) -> int:
    """Run `pack`. Returns 1 if a program could not be compiled for the topology."""
    if (args.topology is None) != (args.dump is None):
        raise ValueError("--topology NAME and --dump DUMP, a folder that LAZYTPU_DUMP=DUMP wrote, go together")
    if args.topology is None:
        return _say_packed(_cache(args), args.out)
    from lazytpu.runtime.tpu.ahead import compile_dump  # imported here, because it imports jax

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
    # imported here, because it starts XLA's client to determine its platform
    from lazytpu.runtime.cache.translation import environment

    result = unpack(_cache(args), args.file, environment())
    print(result)
    return int(bool(result.refused))
