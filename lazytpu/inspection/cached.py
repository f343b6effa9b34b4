"""`lazytpu-show cache`: the contents of the cache on disk as a table, most recently used first, and compilations in
progress."""

from __future__ import annotations

import argparse
import socket
import time
from pathlib import Path

from lazytpu.inspection.highlight import console, table
from lazytpu.options import options
from lazytpu.runtime.cache.files import Listed
from lazytpu.runtime.cache.making import Making
from lazytpu.runtime.cache.store import Store, store


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cache` to a parser of commands."""
    parser = commands.add_parser("cache", help="list, verify or clear the cache of compiled programs")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder (default: that of LAZYTPU_CACHE_DIR)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--verify", action="store_true", help="read every entry, and remove the damaged ones")
    action.add_argument("--clear", action="store_true", help="remove every entry")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns 1 if `--verify` found damaged entries."""
    with options(cache_dir=options.cache_dir if args.dir is None else args.dir):
        cache = store()
        if cache.root is None:
            raise ValueError("there is no cache on disk: LAZYTPU_CACHE_DIR is empty or off")
        if args.clear:
            return _say(0, f"removed {_entries(cache.clear())} from {cache.root}")
        if args.verify:
            return _verify(cache)
        return _list(cache)


def _list(cache: Store) -> int:
    entries, now = cache.entries(), time.time()
    if entries:
        listed = table("key", "kind", "program", "age", "size", "last use", "hits", left=("kind", "program"))
        for entry in reversed(entries):
            listed.add_row(*_row(entry, now))
        console().print(listed)
    _list_making(cache, now)
    total, limit = sum(entry.size for entry in entries), options.cache_limit
    return _say(
        0, f"{_entries(len(entries))}, {size(total)} of {size(limit) if limit else 'no limit'}, in {cache.root}"
    )


def _list_making(cache: Store, now: float) -> None:
    making = cache.making()
    if not making:
        return
    columns = ("in the making", "kind", "program", "ops", "since", "by process", "for")
    listed = table(*columns, left=columns)
    for entry in making:
        about = entry.about
        since = age(now - entry.since) + (f" of {age(about['estimate'])}" if "estimate" in about else "")
        ops = f"{about['ops']:,}" if "ops" in about else ""
        listed.add_row(entry.key[:12], entry.kind, str(about.get("name", "")), ops, since, *_processes(entry))
    console().print(listed)


def _processes(making: Making) -> tuple[str, str]:
    """Return the process that compiles an entry, with its machine if that is another one, and the process that it
    compiles for, with whether that has ended."""
    this_machine = f" on {socket.gethostname()}"
    by, client = making.by.removeprefix("process ").removesuffix(this_machine), str(making.about.get("for", ""))
    ended = client and making.by.endswith(this_machine) and not Path("/proc", client).exists()
    return by, f"{client}, ended" if ended else client


def _row(entry: Listed, now: float) -> tuple[str, ...]:
    if entry.damage is not None:
        return entry.key[:12], entry.kind, f"damaged: {entry.damage}", "", size(entry.size), age(now - entry.used), ""
    name = str(entry.about.get("name", ""))
    return (
        entry.key[:12],
        entry.kind,
        name,
        age(now - entry.created),
        size(entry.size),
        age(now - entry.used),
        f"{entry.hits:,}",
    )


def _verify(cache: Store) -> int:
    count = len(cache.entries())
    damaged = cache.verify()
    for entry in damaged:
        _say(1, f"removed {entry.kind} {entry.key[:12]}: {entry.damage}")
    return _say(int(bool(damaged)), f"{_entries(count)} read, {len(damaged):,} damaged, in {cache.root}")


def _say(status: int, text: str) -> int:
    console().print(text, markup=False, highlight=False, soft_wrap=True)
    return status


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def age(seconds: float) -> str:
    """Format a time span in its largest unit: 7 s, 12 min, 3 h, 5 days."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds / length):,} {unit}"
    return f"{max(0, int(seconds))} s"


def size(count: float) -> str:
    """Format a number of bytes in a unit that needs at most four digits."""
    for unit in ("B", "kB", "MB"):
        if count < 10_000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.0f} GB"
