"""Settings: variables, attributes and context managers agree; errors list the allowed values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lazytpu.inspection import opt, show
from lazytpu.options import Options, options
from lazytpu.passes.target import NAMES
from lazytpu.readers import plugins
from lazytpu.settings import SETTINGS, Values
from tests import zygote


def test_defaults():
    settings = Options({})
    assert (settings.mode, settings.debug, settings.dump, settings.verify) == ("fused", 0, None, False)
    assert (settings.bounds_check, settings.trace_limit, settings.platform) == (True, 50_000, None)
    assert (settings.cache_dir, settings.cache_limit) == (Path("~/.cache/lazytpu"), 10_000_000_000)


def test_environment_is_read(tmp_path: Path):
    settings = Options(
        {
            "LAZYTPU_MODE": "lazy",
            "LAZYTPU_DEBUG": "3",
            "LAZYTPU_DUMP": str(tmp_path),
            "LAZYTPU_VERIFY": "on",
            "LAZYTPU_BOUNDS_CHECK": "0",
            "LAZYTPU_TRACE_LIMIT": "1_000",
            "LAZYTPU_PLATFORM": "CPU",
            "HOME": "/elsewhere",
        }
    )
    assert (settings.mode, settings.debug, settings.dump, settings.verify) == ("lazy", 3, tmp_path, True)
    assert (settings.bounds_check, settings.trace_limit, settings.platform) == (False, 1_000, "cpu")


def test_empty_variable_is_the_default():
    assert Options({"LAZYTPU_DEBUG": "", "LAZYTPU_DUMP": " "}).debug == 0


@pytest.mark.parametrize("text", ["", " ", "off", "OFF"])
def test_no_cache_folder_is_none(text: str):
    """Only for this variable, empty is not the default: it disables the cache on disk."""
    assert Options({"LAZYTPU_CACHE_DIR": text}).cache_dir is None


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("1_000", 1000), ("2 GB", 2 * 10**9), ("1.5MiB", 3 * 2**19)]
)
def test_sizes(text: str, size: int):
    assert Options({"LAZYTPU_CACHE_LIMIT": text}).cache_limit == size


def test_targets_equal_the_targets_of_the_passes():
    """Settings are read before any pass is imported, so they list the names separately."""
    for name in NAMES:
        with options(target=name.upper()):
            assert options.target == name


def test_plugins_are_platforms(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", "plug:/a/b.so,other:/c.so")
    assert plugins() == {"plug": "/a/b.so", "other": "/c.so"}
    assert Options({"LAZYTPU_PLATFORM": "plug"}).platform == "plug"


ODD = ("", " ", "0", "-1", "1e999", "9" * 400, "9" * 5000, "nan", "é", "None", "1.5 GiB,")
ODD_PATHS = ("~nobody/x", "/etc/passwd", "x" * 5000)


@pytest.mark.parametrize("name", SETTINGS)
def test_invalid_variable_is_reported_at_first_use(name: str):
    """`import torch` reads the variables in every program, and must not raise for any value."""
    for value in ODD + ODD_PATHS:
        settings = Options({f"LAZYTPU_{name.upper()}": value})
        if settings._wrong:
            with pytest.raises(ValueError) as raised:
                settings.check()
            assert str(raised.value).startswith(f"LAZYTPU_{name.upper()} is {value.strip()!r}; allowed: ")
            assert getattr(settings, name) == SETTINGS[name].default
        setattr(settings, name, SETTINGS[name].default)
        settings.check()


def test_all_invalid_variables_are_reported_at_once():
    with pytest.raises(ValueError, match=r"(?s)^LAZYTPU_MODE is 'eager'; .*; LAZYTPU_DEBUG is '9'; allowed: 0 to 4"):
        Options({"LAZYTPU_MODE": "eager", "LAZYTPU_DEBUG": "9"}).check()


def test_unknown_variable_gets_a_hint():
    with pytest.warns(UserWarning, match=r"^LAZYTPU_DEBGU is no setting of lazytpu; did you mean LAZYTPU_DEBUG\?$"):
        Options({"LAZYTPU_DEBGU": "1"}).check()
    with pytest.warns(UserWarning, match=r"^LAZYTPU_XYZ is no setting of lazytpu; settings are mode, debug, "):
        Options({"LAZYTPU_XYZ": "1"}).check()


FIRST_USE = """
import torch
print(torch.ones(2) + 1, torch.device("tpu"), torch.tpu.is_available())
import lazytpu
for use in (lambda: torch.ones(2, device="tpu"), lambda: torch.ones(2).to("tpu"), lazytpu.mark_step, lazytpu.metrics):
    try:
        use()
    except ValueError as error:
        print(error)
lazytpu.options.mode = "strict"
print((torch.ones(2, device="tpu") + 1).tolist())
"""


def test_invalid_variable_does_not_affect_other_programs():
    done = zygote.run(["-c", FIRST_USE], env={**os.environ, "LAZYTPU_MODE": "eager", "LAZYTPU_MOED": "lazy"})
    imported, *lines, right = done.stdout.splitlines()
    assert imported == "tensor([2., 2.]) tpu True"
    assert len(lines) == 4 and all(line.startswith("LAZYTPU_MODE is 'eager'; allowed: debug, strict") for line in lines)
    assert right == "[2.0, 2.0]"
    assert "LAZYTPU_MOED is no setting of lazytpu; did you mean LAZYTPU_MODE?" in done.stderr


@pytest.mark.parametrize("main", [opt.main, show.main])
def test_commands_report_an_invalid_variable(
    main: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.setitem(options._wrong, "target", ValueError("LAZYTPU_TARGET is 'v1'"))
    module = tmp_path / "module.mlir"
    module.write_text("builtin.module {}")
    assert main([str(module)] if main is opt.main else ["stats", str(module)]) != 0
    assert capsys.readouterr().err.endswith(": LAZYTPU_TARGET is 'v1'\n")


BAD = {
    "mode": ("eager", "debug, strict, fused or lazy"),
    "debug": ("5", "0 to 4"),
    "verify": ("maybe", "0 or 1"),
    "bounds_check": ("2", "0 or 1"),
    "trace_limit": ("0", "at least 1"),
    "platform": ("abacus", "cpu, tpu, gpu"),
    "target": ("v1", "v5e, v5p, v6e, tpu7x"),
    "cpu_fallback": ("perhaps", "0 or 1"),
    "nan_check": ("inf", "0 or 1"),
    "cache_limit": ("2 terabytes", "kB, MB, GB"),
    "memory_limit": ("4", "bytes from 1 MiB on"),
    "on_recompile": ("fail", "ignore, warn or raise"),
    "recompile_budget": ("-1", "at least 0"),
    "collectives": ("never", "checked, together or trusted"),
    "buckets": ("64,1", "off, auto, or sizes such as 64,128,256"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_value_raises_with_the_setting_and_the_allowed_values(name: str):
    value, allowed = BAD[name]
    with pytest.raises(ValueError, match=rf"^LAZYTPU_{name.upper()} is '{value}'; allowed: .*{allowed}"):
        Options({f"LAZYTPU_{name.upper()}": value}).check()
    settings = Options({})
    with pytest.raises(ValueError, match=rf"^lazytpu.options.{name} is '{value}'; allowed: .*{allowed}"):
        setattr(settings, name, value)
    with pytest.raises(ValueError, match=rf"^lazytpu.options\({name}\) is '{value}'"):
        settings(**{name: value})  # pyright: ignore[reportArgumentType]
    assert getattr(settings, name) == SETTINGS[name].default


def test_dump_folder_must_not_be_a_file(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="allowed: a folder"):
        Options({})(dump=file)


def test_fraction_is_no_debug_level():
    with pytest.raises(ValueError, match=r"options.debug is 1.5"):
        Options({}).debug = 1.5  # pyright: ignore[reportAttributeAccessIssue]


def test_context_manager_restores_also_after_an_error_and_when_nested():
    settings = Options({})
    with settings(debug=2, dump="graphs") as inside:
        assert inside is settings
        assert (settings.debug, settings.dump) == (2, Path("graphs"))
        with settings(debug=4):
            assert settings.debug == 4
        assert settings.debug == 2
    with pytest.raises(KeyError), settings(verify=True):
        raise KeyError
    assert (settings.debug, settings.dump, settings.verify) == (0, None, False)


def test_override_can_be_entered_within_itself():
    settings = Options({})
    override = settings(debug=1)
    with override:
        settings.debug = 3
        with override:
            assert settings.debug == 1
        assert settings.debug == 3
    assert settings.debug == 0


def test_unknown_name_raises_with_the_known_names():
    with pytest.raises(AttributeError, match="no setting 'debgu'; there are mode, debug"):
        options.debgu = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="no setting 'debgu'"):
        options(debgu=1)  # pyright: ignore[reportCallIssue]


def test_every_setting_is_a_slot_with_a_documented_meaning():
    assert set(SETTINGS) == {name for name in Options.__slots__ if not name.startswith("_")}
    assert set(SETTINGS) == set(Values.__annotations__)
    assert all(setting.meaning and setting.allowed for setting in SETTINGS.values())
    assert "trace_limit=" in repr(options)
