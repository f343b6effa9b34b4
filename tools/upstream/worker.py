"""A child process: imports test files for both devices, and runs their tests by number.

Files for another version of torch import names that the installed one does not have. They get a placeholder: False for
a constant, an empty list for a list of tests, a decorator that changes nothing for a function.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import re
import sys
import time
import traceback
import unittest
import warnings
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = "privateuse1,cpu"

import torch

import lazytpu
from lazytpu.engine.cutting import on_host
from tools.children import say, start_child

SUFFIXES = ("PRIVATEUSE1", "TPU")
MAX_PLACEHOLDERS = 100  # names that a file of another release may import
DISGUISE = "cpu:0"  # names the same device, and equals no name that a test may compare with
MAX_TEXT = 1500  # characters of a reason
MAX_TESTS_OF_A_FILE = 100_000  # beyond the 25,593 of test_unary_ufuncs
ADDRESS_SPACE = 16 << 30  # bytes: a test that allocates without end fails alone


def placeholder(module: ModuleType, name: str) -> Any:
    """The value of a name that this torch does not have."""
    if name.endswith("_and_refs"):
        return getattr(module, name.removesuffix("_and_refs"))
    if name.isupper():
        return False
    if name.endswith("_tests"):
        return []

    def decorate(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return lambda test: test  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]

    return decorate


def only_on_the_cpu(test: Any) -> Any:
    """Keep `onlyCPU`; lift the other restrictions to a device (`bypass_device_restrictions`)."""

    @functools.wraps(test)
    def restricted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device_type != "cpu":
            raise unittest.SkipTest("Only runs on cpu")
        return test(self, *args, **kwargs)

    return restricted


def open_to_the_device() -> None:
    """Let the classes of test files have both devices in spite of `only_for` and `except_for`, unless they are for the
    CPU alone."""
    from torch.testing._internal import common_device_type, common_utils

    common: Any = common_device_type
    common.DeviceTypeTestBase.bypass_device_restrictions = True
    common.PrivateUse1TestBase.bypass_device_restrictions = True
    common.onlyCPU = only_on_the_cpu
    common.onlyCUDAAndPRIVATEUSE1 = lambda test: test  # pyright: ignore[reportUnknownLambdaType]
    native: Any = (*common.NATIVE_DEVICES, DISGUISE)
    common.NATIVE_DEVICES = common_utils.NATIVE_DEVICES = native
    instantiate = common.instantiate_device_type_tests

    def for_both(generic: type, scope: dict[str, Any], *_: Any, only_for: Any = None, **__: Any) -> None:
        instantiate(generic, scope, only_for="cpu" if only_for in ("cpu", ("cpu",), ["cpu"]) else None)

    common.instantiate_device_type_tests = for_both


def compare_on_the_host() -> None:
    """Copy the tensors that `assertEqual` compares to the CPU, as torch does for MPS: comparing them on the device
    compiles programs for each shape and dtype, and a wrong `isclose` could hide a wrong result."""
    from torch.testing import _comparison

    pair: Any = _comparison.TensorLikePair
    equalize = pair._equalize_attributes

    def on_the_host(self: Any, actual: torch.Tensor, expected: torch.Tensor) -> Any:
        return equalize(self, actual.cpu(), expected.cpu())

    pair._equalize_attributes = on_the_host


class OtherVersion(SourceFileLoader):
    """Imports a file written for another version of torch. Its `super(self.__class__, self)` never ends where classes
    for a device inherit from the generic class, as they do in newer versions. Bytecode is neither read nor written."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path).replace(b"super(self.__class__, self)", b"super()"), path)


def import_from(folder: Path) -> None:
    """Import the modules of a folder with `OtherVersion`."""
    hook = FileFinder.path_hook((OtherVersion, SOURCE_SUFFIXES))

    def within(path: str) -> Any:
        if not Path(path).resolve().is_relative_to(folder):
            raise ImportError
        return hook(path)

    sys.path_hooks.insert(0, within)


def imported(folder: Path, file: str) -> ModuleType:
    path = folder / file
    sys.path[:0] = [str(path.parent), str(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.argv = [str(path)]  # torch parses the options of a test run
    for _ in range(MAX_PLACEHOLDERS):
        try:
            return importlib.import_module(path.stem)
        except ModuleNotFoundError:
            raise
        except ImportError as error:
            wanted = getattr(error, "name_from", None) or str(error).split("'")[1]
            module = sys.modules.get(error.name or "")
            if module is None or hasattr(module, wanted):
                raise
            setattr(module, wanted, placeholder(module, wanted))
            sys.modules.pop(path.stem, None)
    raise ImportError(f"{file} needs more than {MAX_PLACEHOLDERS} names that torch {torch.__version__} does not have")


def generic(name: str) -> str:
    """Return the name of a class without the device's name. torch renames the device when it first sets up a class."""
    return name.removesuffix(SUFFIXES[0]).removesuffix(SUFFIXES[1])


def tests_of(module: ModuleType) -> list[tuple[str, str]]:
    """The tests that exist for "tpu", sorted: (class, test)."""
    tests: list[tuple[str, str]] = []
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and name.endswith(SUFFIXES):
            tests += [(name, test) for test in unittest.TestLoader().getTestCaseNames(value)]
    return sorted(tests)


def control_of(module: ModuleType, name: str, test: str) -> tuple[str, str] | None:
    """Return the same test on the CPU device; None if upstream does not generate one, for example for another dtype."""
    cls = getattr(module, generic(name) + "CPU", None)
    device_name = torch._C._get_privateuse1_backend_name()  # pyright: ignore
    for device in ("privateuse1", device_name):
        control = test.replace(f"_{device}", "_cpu", 1)
        if control != test and cls is not None and hasattr(cls, control):
            return cls.__name__, control
    return None


def shortened(text: str) -> str:
    """Return the end of a traceback, after the line of its exception and of the exceptions that led to it: torch's
    dispatcher appends a long list."""
    text = text.partition("\nTo execute this test")[0].strip()
    raised = [line for line in text.splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception)\b", line)]
    return "\n".join([" <- ".join(reversed(raised)), text[-MAX_TEXT:]])


def message(reason: str) -> str:
    """Return the whole message of the last exception, with values that it compared."""
    return re.split(r"^(?=[A-Za-z_.]+(?:Error|Exception)\b)", reason, flags=re.MULTILINE)[-1].strip()


def outcome(module: ModuleType, name: str, test: str) -> tuple[str, str]:
    """(passed, skipped or failed; the reason)."""
    result = unittest.TestResult()
    quiet = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        try:
            unittest.TestSuite([getattr(module, name)(test)]).run(result)
        except Exception:  # noqa: BLE001  torch's TestCase may raise outside of the result
            return "failed", shortened(traceback.format_exc())
    for failed in (*result.errors, *result.failures):
        return "failed", shortened(failed[1])
    if result.unexpectedSuccesses:
        return "failed", "unexpected success"
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return ("passed", "") if result.testsRun else ("skipped", "class")


def resemble_a_script() -> None:
    """Run a trace as long as those of a model. Beside such traces short ones run on the host, where only ops tried out
    one by one always get programs; otherwise, that would depend on the tests that this process ran before."""
    x = torch.zeros(2, device="tpu")
    for _ in range(on_host.BESIDE):
        x = x.sin()
    x.tolist()


def main(folder: Path, files: list[str], seed: int, numbers: str, *, only_controls: bool = False) -> None:
    """Report the outcome of each test and its control; with "list" as numbers, report how many tests the files have.
    The number of a test is its index in its file, plus `MAX_TESTS_OF_A_FILE` times the index of the file."""
    lazytpu.options.cpu_fallback = False
    start_child(ADDRESS_SPACE)
    resemble_a_script()
    from torch.testing._internal import common_utils

    open_to_the_device()
    compare_on_the_host()
    import_from(folder)
    if numbers == "list":
        for file in files:
            try:
                say(file=file, tests=len(tests_of(imported(folder, file))))
            except Exception as error:  # noqa: BLE001  an import may raise anything
                say(file=file, error=f"{type(error).__name__}: {error}"[:300])
        return
    common_utils.SEED = seed
    chosen = [divmod(int(number), MAX_TESTS_OF_A_FILE) for number in numbers.split(",")]
    # A class that is set up renames the device, so that classes generated later would have other names.
    modules = {index: imported(folder, files[index]) for index in sorted({index for index, _ in chosen})}
    tests = {index: tests_of(module) for index, module in modules.items()}
    for index, in_file in chosen:
        number, module = index * MAX_TESTS_OF_A_FILE + in_file, modules[index]
        name, test = tests[index][in_file]
        status, reason, late = "", "", False
        if not only_controls:
            say(number=number, stage="tpu", test=f"{generic(name)}.{test}")
            started = time.process_time()
            status, reason = outcome(module, name, test)
            late = status == "failed" and is_late(module, name, test, reason)
            seconds = round(time.process_time() - started, 2)
            say(number=number, stage="cpu", status=status, reason=reason, late=late, seconds=seconds)
        else:
            say(number=number, stage="cpu")
        on_cpu = control_of(module, name, test) if status != "skipped" else None
        control, control_reason = outcome(module, *on_cpu) if on_cpu else ("missing", "")
        named = False
        if on_cpu and status == "failed" and control == "passed" and not late:
            named = of_device_names(module, *on_cpu, reason)
        say(number=number, stage="done", control=control, control_reason=control_reason[-300:], of_device_names=named)


def of_device_names(module: ModuleType, cls: str, test: str, reason: str) -> bool:
    """Whether a control fails as the test does if the CPU device has another name: the test asserts behaviour of CUDA
    for each device that is not named "cpu"."""
    control: Any = getattr(module, cls)
    defaults = getattr(control, test).__defaults__ or ()
    arguments = next((value for value in defaults if isinstance(value, dict) and "device" in value), {})
    device, device_type = arguments.get("device"), control.device_type
    arguments["device"] = control.device_type = DISGUISE
    try:
        status, disguised_reason = outcome(module, cls, test)
    finally:
        arguments["device"], control.device_type = device, device_type
    return status == "failed" and message(disguised_reason) == message(reason)


def is_late(module: ModuleType, name: str, test: str, reason: str) -> bool:
    """Whether a test failed since an error that values decide comes with the read: debug mode reads after each op."""
    if not re.search(r"(Error|Exception) not raised", reason):
        return False
    with lazytpu.mode("debug"):
        return outcome(module, name, test)[0] == "passed"


if __name__ == "__main__":
    _, folder, files, seed, numbers, *remaining = sys.argv
    main(Path(folder), files.split(","), int(seed), numbers, only_controls=remaining == ["control"])
