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
    """Adds `pack` and `unpack` to a parser of commands."""
    packing = commands.add_parser("pack", help="write the compiled programs of a cache to one file")
    packing.add_argument("out", type=Path, metavar="OUT", help="the file to write, a zip")
    packing.add_argument(
        "--topology",
        metavar="NAME",
        help="compile the programs of DUMP for a TPU topology that need not be there, such as v6e:2x2",
    )
    packing.add_argument("--dump", type=Path, metavar="DUMP", help="with --topology: what LAZYTPU_DUMP=DUMP wrote")
    packing.set_defaults(run=_pack)
    unpacking = commands.add_parser(
        "unpack",
        help="take such a file into a cache",
        description="Takes the programs of a file into a cache; those made for another environment are refused, with "
        "what differs. They are machine code that your scripts will run: unpack files of people you trust.",
    )
    unpacking.add_argument("file", type=Path, metavar="FILE")
    unpacking.set_defaults(run=_unpack)
    for each in (packing, unpacking):
        each.add_argument("--dir", type=Path, metavar="DIR", help="the cache (default: that of LAZYTPU_CACHE_DIR)")


def _cache(asked: argparse.Namespace) -> Store:
    with options(cache_dir=options.cache_dir if asked.dir is None else asked.dir):
        kept = store()
    if kept.root is None:
        raise ValueError("there is no cache on disk: LAZYTPU_CACHE_DIR is empty or off; name one with --dir")
    return kept


def _pack(asked: argparse.Namespace) -> int:
    """Returns 1 when some program could not be compiled for the topology."""
    if (asked.topology is None) != (asked.dump is None):
        raise ValueError("--topology NAME and --dump DUMP, a folder that LAZYTPU_DUMP=DUMP wrote, go together")
    if asked.topology is None:
        return _say_packed(_cache(asked), asked.out)
    from lazytpu.runtime.cache.ahead import compile_dump  # here: it imports jax

    with tempfile.TemporaryDirectory() as folder:
        try:
            told = compile_dump(asked.topology, asked.dump, Path(folder) / "cache")
        except PlatformError as error:
            raise ValueError(error) from error
        print("\n".join(told))
        _say_packed(Store(Path(folder) / "cache"), asked.out)
    return int(any(": not compiled: " in line for line in told))


def _say_packed(kept: Store, out: Path) -> int:
    count = pack(kept, out)
    print(f"{count:,} entries are in {out}, {out.stat().st_size:,} bytes")
    return 0


def _unpack(asked: argparse.Namespace) -> int:
    """Returns 1 when something was refused."""
    from lazytpu.runtime.cache.translation import environment  # here: it starts XLA's client, to know its platform

    found = unpack(_cache(asked), asked.file, environment())
    print(found)
    return int(bool(found.refused))
