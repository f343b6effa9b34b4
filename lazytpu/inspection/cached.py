"""`lazytpu-show cache`: the contents of the cache on disk as a table, most recently used first, and compilations in
progress."""

from __future__ import annotations

import argparse
import socket
import time
from pathlib import Path

from lazytpu.inspection.commands import CACHE, Command, argument
from lazytpu.inspection.highlight import show, table
from lazytpu.inspection.units import age, size
from lazytpu.options import options
from lazytpu.runtime.cache.files import Listed
from lazytpu.runtime.cache.making import Making
from lazytpu.runtime.cache.store import Store, store


def cache_of(args: argparse.Namespace) -> Store:
    """Return the cache that `--dir` names. Raises ValueError if there is none."""
    with options(cache_dir=options.cache_dir if args.dir is None else args.dir):
        cache = store()
    if cache.root is None:
        raise ValueError("there is no cache on disk: LAZYTPU_CACHE_DIR is empty or off; name one with --dir")
    return cache


def _run(args: argparse.Namespace) -> int:
    """Run the command. Returns 1 if `--verify` found damaged entries."""
    cache = cache_of(args)
    if args.verify and args.clear:
        raise ValueError("--verify reads the entries that --clear removes; choose one")
    if args.clear:
        show(f"removed {_entries(cache.clear())} from {cache.root}")
        return 0
    return _verify(cache) if args.verify else _list(cache)


def _verify(cache: Store) -> int:
    count, damaged = len(cache.entries()), cache.verify()
    show(*[f"removed {entry.kind} {entry.key[:12]}: {entry.damage}" for entry in damaged])
    show(f"{_entries(count)} read, {len(damaged):,} damaged, in {cache.root}")
    return int(bool(damaged))


def _list(cache: Store) -> int:
    entries, now, limit = cache.entries(), time.time(), options.cache_limit
    if entries:
        columns = "key", "kind", "program", "age", "size", "last use", "hits"
        show(table(columns, [_row(entry, now) for entry in reversed(entries)], left=columns[:3]))
    if making := cache.making():
        columns = "in the making", "kind", "program", "ops", "since", "by process", "for"
        show(table(columns, [_row_in_the_making(entry, now) for entry in making], left=columns))
    total = size(sum(entry.size for entry in entries))
    show(f"{_entries(len(entries))}, {total} of {size(limit) if limit else 'no limit'}, in {cache.root}")
    return 0


def _row(entry: Listed, now: float) -> tuple[str, ...]:
    key, sizes = (entry.key[:12], entry.kind), (size(entry.size), age(now - entry.used))
    if entry.damage is not None:
        return *key, f"damaged: {entry.damage}", "", *sizes, ""
    return *key, str(entry.about.get("name", "")), age(now - entry.created), *sizes, f"{entry.hits:,}"


def _row_in_the_making(entry: Making, now: float) -> tuple[str, ...]:
    about = entry.about
    since = age(now - entry.since) + (f" of {age(about['estimate'])}" if "estimate" in about else "")
    ops = f"{about['ops']:,}" if "ops" in about else ""
    return entry.key[:12], entry.kind, str(about.get("name", "")), ops, since, *_processes(entry)


def _processes(making: Making) -> tuple[str, str]:
    """Return the process that compiles an entry, with its machine if that is another one, and the process that it
    compiles for, with whether that has ended."""
    this_machine = f" on {socket.gethostname()}"
    by, client = making.by.removeprefix("process ").removesuffix(this_machine), str(making.about.get("for", ""))
    ended = client and making.by.endswith(this_machine) and not Path("/proc", client).exists()
    return by, f"{client}, ended" if ended else client


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


COMMANDS = {
    "cache": Command(
        _run,
        "list, verify or clear the cache of compiled programs",
        (
            CACHE,
            argument("--verify", action="store_true", help="read every entry, and remove the damaged ones"),
            argument("--clear", action="store_true", help="remove every entry"),
        ),
    ),
}
