"""Every command and every block of code of the README, the pages beside it, and docs/ runs as printed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lazytpu.settings import SETTINGS
from tests import zygote
from tests.compiling import as_flags

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md"), key=lambda page: page.name != "README.md"), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
WARNINGS = "error,ignore:`torch.jit,ignore:mode debug runs"  # torch warns about its own code; ours, of debug mode
FLAGS = {"XLA_FLAGS": as_flags()}
LIMIT = 1800  # seconds, after which a hanging command is killed: a command of one minute takes eight on busy cores

# Commands that take minutes get these documented arguments in addition, and `make` gets the environment of the tests.
TINY = "--steps 2 --layers 1 --width 32 --window 16 --batch 2 --sample 4"
SERVED = "--requests 4 --longest 12 --tokens 5 --at-once 2 --layers 1 --width 16"
MAKE = f"VENV={sys.prefix} -o {sys.prefix}/.installed -o {sys.prefix}/.installed-test"
SHORTENED = {
    "make demo": f"make demo {MAKE} ARGS='{TINY} --out demo.pt'",
    "make test": f"make test {MAKE} --dry-run",
    ". .venv/bin/activate": f". {sys.prefix}/bin/activate",
    # The environment of the tests has the packages that its build would download.
    "pip install .": f"PYTHONWARNINGS= pip install --dry-run --no-deps --no-build-isolation {ROOT}",
    "make bench": f"make bench {MAKE} --dry-run",  # each benchmark runs in tests/benchmarks
    "python benchmarks/table.py --write docs/performance.md": "python benchmarks/table.py --help",
    "make conformance": f"make conformance {MAKE} K=1 ARGS='--only ^abs --dtypes float32'",
    "make conformance SIZES=large SEED=1": (
        f"make conformance SIZES=large SEED=1 {MAKE} K_LARGE=1 ARGS='--only ^abs --dtypes float32'"
    ),
    "make tpu-column": f"make tpu-column {MAKE} CHIPS=v6e K_COMPILED=1 ARGS='--only ^abs --dtypes float32'",
    "make coverage": f"make coverage {MAKE}",
    'python -m tools.conformance sweep --only "^addcmul$" --results addcmul.jsonl': (
        'python -m tools.conformance sweep --only "^addcmul$" --results addcmul.jsonl -k 1 --dtypes float32'
    ),
    "lazytpu-show cost graphs/001-main.imported.mlir": "lazytpu-show cost --help",  # the tests have no libtpu
    "python examples/train_gpt.py": f"python examples/train_gpt.py {TINY} --out gpt.pt",
    "python -m lazytpu.doctor": "python -m lazytpu.doctor --list",  # tests/doctor has the checks
    "python -m lazytpu.doctor transfers training --json report.json": (
        "python -m lazytpu.doctor machine --json report.json"
    ),
    "python -m lazytpu.doctor templates": "python -m lazytpu.doctor templates --list",
    "make doctor-plugin": f"make doctor-plugin {MAKE} --dry-run",
    "make lint": f"make lint {MAKE} --dry-run",
    "make docs": f"make docs {MAKE} --dry-run",  # built in test_site.py
    "pip wheel . --no-deps --wheel-dir dist": "pip wheel --help",  # the `pip install .` above builds the same
    "python examples/digits.py": "python examples/digits.py --epochs 1",
    "python examples/serving.py": f"python examples/serving.py {SERVED}",
}


# tests/examples/test_distributed.py runs these lines, and checks their output.
IN_SEVERAL_PROCESSES = "torchrun "

# The slowest commands, even with these arguments; tests/examples and tests/conformance run the same programs.
LONG = (
    *("make demo", "make conformance", "python examples/serving.py", "python examples/train_gpt.py"),
    "python -m tools.conformance sweep",
)


# Pages whose blocks depend on each other: they run from top to bottom, in one folder.
WALKTHROUGHS = [ROOT / "docs" / name for name in ("writing-a-pass.md", "export.md", "torch-compile.md", "padding.md")]


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (page:line, text) of all independent blocks in a language, in order."""
    of_pages: list[tuple[str, str]] = []
    for page in PAGES:
        if page in WALKTHROUGHS:
            continue
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                of_pages.append((f"{page.relative_to(ROOT)}:{line}", match[2]))
    return of_pages


def ids(of_pages: list[tuple[str, str]]) -> list[str]:
    return [where for where, _ in of_pages]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the files of the project that the pages name to a folder where commands may write."""
    for name in "benchmarks examples lazytpu tests tools Makefile constraints.txt pyproject.toml".split():
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").mkdir()
    return tmp_path


def run(command: str, folder: Path) -> str:
    """Return a shell command's standard output. A command that only runs a Python program runs in a fork."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "PYTHONWARNINGS": WARNINGS, **FLAGS}
    simple = re.fullmatch(r"((?:\w+=\w+ )*)(python|lazytpu-\w+) ([^|*;&<>$`]+)", command)
    if simple is not None:
        variables, program, arguments = simple[1].split(), simple[2], shlex.split(simple[3])
        environment |= dict(variable.split("=") for variable in variables)
        program = [] if program == "python" else [str(BIN / program)]
        done = zygote.run([*program, *arguments], cwd=folder, env=environment, timeout=LIMIT)
    else:
        done = run_in_shell(command, folder, environment)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def run_in_shell(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in its own session: signals for the terminal's processes do not reach it, and all its children,
    which would keep its output open, end with it."""
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, shell=True, env=environment, start_new_session=True, **pipe) as shell:
        try:
            printed, complaints = shell.communicate(timeout=LIMIT)
        except BaseException:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, shell.returncode, printed, complaints)


def test_hanging_command_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "LIMIT", 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        run_in_shell("sleep 600 & echo $! > child; wait", tmp_path, dict(os.environ))
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    until = time.monotonic() + 60
    # in a container, perhaps no process reaps it
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=ids(blocks("python")))
def test_code_runs(where: str, code: str, checkout: Path):
    script = checkout / "block.py"
    script.write_text(code)
    run("python block.py", checkout)


def command_blocks() -> list[Any]:
    of_pages = blocks("bash")
    marks = [pytest.mark.long if text.startswith(LONG) else () for _, text in of_pages]
    return [pytest.param(*block, id=block[0], marks=mark) for block, mark in zip(of_pages, marks)]


@pytest.mark.parametrize(("where", "commands"), command_blocks())
def test_commands_run(where: str, commands: str, checkout: Path):
    """The commands of one block run in order, in one folder."""
    for line in commands.splitlines():
        command = line.partition("#")[0].strip()
        if command.startswith(IN_SEVERAL_PROCESSES):
            continue
        run(SHORTENED.get(command, command), checkout)


@pytest.mark.parametrize("page", WALKTHROUGHS, ids=lambda page: page.stem)
def test_page_runs_from_top_to_bottom(page: Path, checkout: Path):
    """A block that begins with a file's name as a comment is that file. Commands run, and the following block of text
    must equal the output of the last one."""
    printed, files = "", 0
    for language, text in BLOCK.findall(page.read_text()):
        name = re.match(r"(?:#|//) (\w+\.\w+)\n", text)
        if name is not None:
            (checkout / name[1]).write_text(text)
            files += 1
        elif language == "bash":
            for command in text.splitlines():
                printed = run(command, checkout)
        elif language == "text":
            assert printed == text
    assert files and printed


def test_shortened_commands_are_on_a_page():
    printed = {line.partition("#")[0].strip() for _, text in blocks("bash") for line in text.splitlines()}
    assert set(SHORTENED) <= printed


def test_loop_equals_the_example():
    assert (ROOT / "examples/mlp.py").read_text() in [code for _, code in blocks("python")]


def test_adding_an_op_takes_three_lines(checkout: Path):
    """Without the rule, the script ends with an error that prints its first two lines."""
    (code,) = [code for where, code in blocks("python") if where.startswith("docs/adding-an-op") and "softsign" in code]
    lines = code[code.index("@rule") :].split("\n\n")[0].splitlines()
    assert len(lines) == 3
    (checkout / "block.py").write_text(code.replace("\n".join(lines), ""))
    with pytest.raises(AssertionError, match=r"NotImplementedError: 'shop\.softsign\.default'") as error:
        run("python block.py", checkout)
    assert f"{lines[0]}\n" in str(error.value) and lines[1] in str(error.value)


def test_table_of_settings_is_complete():
    page = ROOT / "docs/settings.md"
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\S+) \| (.*?) \| (.*?) \|$", page.read_text(), re.MULTILINE)
    assert rows == [(s.name, s.variable, default(s.default), s.allowed, s.meaning) for s in SETTINGS.values()]


def default(value: object) -> str:
    """Return a default as in the table: flags as 0 and 1."""
    return "none" if value is None else f"`{int(value) if isinstance(value, bool) else value}`"


def test_table_has_every_room():
    rooms = {path.parent.name for path in (ROOT / "lazytpu").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `lazytpu/(\w+)/` \|", PAGES[0].read_text(), re.MULTILINE))


def test_links_have_targets():
    """mkdocs also checks anchors, and links between pages (test_site.py)."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
