"""`lazytpu-show pack` and `lazytpu-show unpack`: compiled programs in one file, for another machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from lazytpu.options import options
from lazytpu.runtime.cache.library import pack, unpack
from lazytpu.runtime.cache.store import Store, store


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pack` and `unpack` to a parser of commands."""
    packing = commands.add_parser("pack", help="write the compiled programs of a cache to one file")
    packing.add_argument("out", type=Path, metavar="OUT", help="the file to write, a zip")
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
    kept = _cache(asked)
    count = pack(kept, asked.out)
    print(f"{count:,} entries of {kept.root} are in {asked.out}, {asked.out.stat().st_size:,} bytes")
    return 0


def _unpack(asked: argparse.Namespace) -> int:
    """Returns 1 when something was refused."""
    from lazytpu.runtime.cache.translation import environment  # here: it starts XLA's client, to know its platform

    found = unpack(_cache(asked), asked.file, environment())
    print(found)
    return int(bool(found.refused))
