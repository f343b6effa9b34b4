"""tests/zygote.py: the output, the status and the environment of a forked program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import zygote


def test_outputs_and_status() -> None:
    done = zygote.run(["-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        zygote.run(["-c", "raise SystemExit(3)"], check=True)


def test_exception_is_status_1_with_its_traceback() -> None:
    done = zygote.run(["-c", "def f():\n    raise ValueError('no')\nf()"])
    assert done.returncode == 1
    assert 'File "<string>", line 2, in f\nValueError: no\n' in done.stderr


FREED = """
import atexit, os, sys
class Freed:
    def __del__(self, write=os.write): write(1, b"freed")
kept = Freed()
atexit.register(print, "exit function")
sys.exit(3)
"""


@pytest.mark.parametrize(("finalizes", "printed"), [(False, ""), (True, "freed")])
def test_objects_are_freed_at_the_end_on_request(finalizes: bool, printed: str) -> None:
    done = zygote.run(["-c", FREED], finalizes=finalizes)
    assert (done.returncode, done.stdout) == (3, f"exit function\n{printed}"), done.stderr


def test_signal_is_a_negative_status() -> None:
    done = zygote.run(["-c", "import os; print('before', flush=True); os.abort()"])
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "before\n")


def test_hanging_process_is_killed() -> None:
    start = time.monotonic()
    process = zygote.Process(["-c", "import time; time.sleep(600)"])
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.2)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        zygote.run(["-c", "import time; time.sleep(600)"], timeout=0.2)
    assert time.monotonic() - start < 60


def test_several_run_at_once(tmp_path: Path) -> None:
    """Each waits for the file of the other."""
    code = "import sys, time, pathlib\npathlib.Path(sys.argv[1]).touch()\n"
    code += "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.001)\nprint(sys.argv[1])"
    pairs = [("a", "b"), ("b", "a")]
    processes = [zygote.Process(["-c", code, *pair], cwd=tmp_path) for pair in pairs]
    assert [process.communicate(timeout=120) for process in processes] == [("a\n", ""), ("b\n", "")]


SHOWN = """
import json, os, sys, warnings
print(json.dumps([__name__, sys.argv, os.getcwd(), dict(os.environ), sys.path[0]]))
"""


@pytest.mark.parametrize("way", ["-c", "-m", "script"])
def test_fork_has_the_program_arguments_environment_and_folder(tmp_path: Path, way: str) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    program = {"-c": ["-c", SHOWN], "-m": ["-m", "shown"], "script": ["shown.py"]}[way]
    environment = {**os.environ, "LAZYTPU_NOTHING": "1"}
    done = zygote.run([*program, "--flag", "x"], cwd=tmp_path, env=environment, check=True)
    name, arguments, folder, variables, first = json.loads(done.stdout)
    fresh = subprocess.run([sys.executable, *program, "--flag", "x"], cwd=tmp_path, capture_output=True)
    assert (name, arguments, folder) == ("__main__", json.loads(fresh.stdout)[1], str(tmp_path))
    assert environment.items() <= variables.items()
    assert first == json.loads(fresh.stdout)[4]


def test_variables_missing_from_its_environment_are_removed() -> None:
    code = "import os; print('HOME' in os.environ, 'XLA_FLAGS' in os.environ)"
    zygote.run(["-c", ""])  # the server has started
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XLA_FLAGS")}
    assert zygote.run(["-c", code], env=environment).stdout == "False False\n"


def test_settings_follow_its_environment() -> None:
    code = "import lazytpu; print(lazytpu.options.mode, lazytpu.options.dump)"
    environment = {**os.environ, "LAZYTPU_MODE": "strict"}
    assert zygote.run(["-c", code], env=environment).stdout == "strict None\n"
    done = zygote.run(["-c", "import lazytpu; lazytpu.sync()"], env={**os.environ, "LAZYTPU_MODE": "fast"})
    assert done.returncode == 1
    assert "ValueError: LAZYTPU_MODE is 'fast'" in done.stderr


@pytest.mark.parametrize("options", [[], ["-W", "error"], ["-W", "ignore"]])
def test_warnings_follow_its_options(options: list[str]) -> None:
    code = "import warnings; warnings.warn('deprecated', DeprecationWarning, stacklevel=2); warnings.warn('mind')"
    done = zygote.run([*options, "-c", code])
    fresh = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
    assert done.returncode == fresh.returncode
    assert done.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def test_fork_has_a_separate_device() -> None:
    code = "import torch; x = torch.ones(3).to('tpu'); print((x + 1).tolist(), torch.tpu._is_in_bad_fork())"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    done = zygote.run(["-c", f"{code}; import jax; print(jax.device_count())"], env=environment)
    assert (done.stdout, done.stderr) == ("[2.0, 2.0, 2.0] False\n3\n", "")


def test_unsupported_variable_is_refused() -> None:
    with pytest.raises(ValueError, match="PYTHONHASHSEED is read when Python starts: use subprocess"):
        zygote.run(["-c", ""], env={**os.environ, "PYTHONHASHSEED": "7"})
