"""Where the cache lies, and whether it is safe to use: its programs are machine code that this process will run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

DEFAULT = Path("~/.cache/lazytpu")
ENTRIES, LOCKS, TEMPORARY, LEDGER, TAG = "entries", "locks", "temporary", "ledger", "CACHEDIR.TAG"
SPEEDS = "speeds"  # how fast this machine compiles: see `lazytpu.runtime.cache.speeds`
PRIVATE = 0o700

# What backup programs look for (https://bford.info/cachedir): a folder whose content can be made again.
_TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# Programs compiled by lazytpu.\n"


class UnsafeFolder(OSError):
    """Others can, or could, write into the folder."""


def located(folder: Path) -> Path:
    """The absolute path of a cache folder; the default one is $XDG_CACHE_HOME/lazytpu where that variable is set.

    Raises:
        OSError: there is no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if folder == DEFAULT and os.path.isabs(base):  # the specification: a relative path is to be ignored
        return Path(base) / "lazytpu"
    try:
        return folder.expanduser().absolute()
    except RuntimeError as error:
        raise OSError(f"{folder}: {error}") from error


def check(root: Path) -> str | None:
    """Makes sure that an existing folder is the user's own and closed to others; says what it mended, if anything.

    Raises:
        UnsafeFolder: it is another user's, or open to others and not only the cache's.
        OSError: it cannot be looked at, or is no folder.
    """
    status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{root} is not a folder")
    if status.st_uid != os.geteuid():
        raise UnsafeFolder(f"{root} belongs to user {status.st_uid}, and programs are only run from your own folder")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~PRIVATE == 0:
        return None
    others = {entry.name for entry in os.scandir(root)} - {ENTRIES, LOCKS, TEMPORARY, LEDGER, TAG, SPEEDS}
    if others:
        raise UnsafeFolder(
            f"{root} is open to others (mode {mode:04o}), and more than the cache is in it ({sorted(others)[0]}): "
            f"name a folder of its own, such as {root / 'lazytpu'}"
        )
    os.chmod(root, PRIVATE)
    if mode & 0o022:
        return f"{root} could be written by others (mode {mode:04o}); it is private now, and their files are not used"
    return None


def make(root: Path) -> None:
    """Makes the folder, closed to others, if it is not there. Raises OSError."""
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(PRIVATE, exist_ok=True)


def fill(root: Path) -> None:
    """Makes what is missing in the folder. Raises OSError."""
    for name in (ENTRIES, LOCKS, TEMPORARY):
        (root / name).mkdir(PRIVATE, exist_ok=True)
    tag = root / TAG
    if not tag.exists():
        tag.write_text(_TAG_TEXT)
