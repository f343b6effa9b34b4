"""The environment that two processes must share to exchange programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest

from lazytpu.runtime.cache import fingerprint
from lazytpu.runtime.xla import client


@pytest.fixture
def environment() -> Iterator[Callable[[], Mapping[str, str]]]:
    """`fingerprint.environment`, recomputed at each call. The client exists before: it would load the plugins that
    tests name."""
    client.platform()

    def anew() -> Mapping[str, str]:
        fingerprint.environment.cache_clear()
        return fingerprint.environment()

    yield anew
    fingerprint.environment.cache_clear()


def test_another_build_of_a_plugin_is_another_environment(
    environment: Callable[[], Mapping[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of plugins all report the same version."""
    library = tmp_path / "plugin.so"
    library.write_bytes(b"first")
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"plug:{library}")
    first = environment()
    assert first["plugin plug"].startswith(f"{library} 5 ")
    library.write_bytes(b"other")
    os.utime(library, ns=(0, 1))
    assert environment() != first


def test_libtpu_may_be_a_file(
    environment: Callable[[], Mapping[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libtpu.so"
    library.write_bytes(b"libtpu")
    installed = metadata.version

    def version(name: str) -> str:
        if name == "libtpu":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(client, "platform", lambda: "tpu")
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    assert environment()["libtpu"].startswith(f"{library} 6 ")
