"""A process with work in progress exits soon, without messages, and with its exit status."""

from __future__ import annotations

import textwrap

from tests import zygote

# The beginning of every script. `hang` makes compilations in XLA take minutes. A script that hangs is killed after
# 150 seconds, and prints the stacks of all threads.
PRELUDE = """
import faulthandler, os, sys, threading, time
faulthandler.dump_traceback_later(150, exit=True)
import torch, lazytpu
from lazytpu import wiring
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir

engine = wiring.start()
x = torch.ones(64, 64).to("tpu")
assert (x + 1).sum().item() == 64 * 64 * 2

def endless():
    product = "stablehlo.dot_general %{0}, %arg0, contracting_dims = [1] x [0]"
    sort = '"stablehlo.sort"(%p{0}) ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.compare LT, %a, %b'
    sort += " : (tensor<f32>, tensor<f32>) -> tensor<i1> stablehlo.return %c : tensor<i1> }}) {{dimension = 0 : i64}}"
    kind = "tensor<64x64xf32>"
    lines, last = [], "arg0"
    for i in range(4000):
        lines.append(f"%p{i} = {product.format(last)} : ({kind}, {kind}) -> {kind}")
        lines.append(f"%s{i} = {sort.format(i)} : ({kind}) -> {kind}")
        last = f"s{i}"
    body = "\\n".join(lines)
    text = f"module {{ func.func public @main(%arg0: {kind}) -> {kind} {{ {body} return %{last} : {kind} }} }}"
    with client.mlir_context():
        return ir.Module.parse(text)

def hang():
    module = endless()
    engine.background.build = lambda prepared: client.compile_module(module)
    lazytpu.options.background_compile = 1.0
"""


def run(script: str, status: int = 0) -> tuple[str, str]:
    """Run a script, check its exit status and that it reports no thread, and return its standard output and error."""
    code = PRELUDE + textwrap.dedent(script)
    done = zygote.run(["-c", code], timeout=240, finalizes=True)
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    for word in ("terminate called", "Fatal", "Exception ignored", "Aborted"):
        assert word not in done.stderr, done.stderr
    return done.stdout, done.stderr


def test_exit_abandons_a_long_compilation() -> None:
    out, err = run(
        """
        hang()
        y = x @ x
        lazytpu.mark_step()
        assert len(engine.background.unfinished()) == 1 and lazytpu.metrics()["stepwise"] == 1
        print(y.sum().item())
        sys.exit(7)
        """,
        status=7,
    )
    assert (float(out), err) == (64.0**3, "")


def test_exit_waits_for_a_short_compilation() -> None:
    out, err = run(
        """
        real, build = engine.background.build, lambda prepared: (time.sleep(2), real(prepared), print("compiled"))[1]
        engine.background.build = build
        lazytpu.options.background_compile = 0.1
        (x @ x).sum().item()
        print("the end")
        """
    )
    assert (out.split("\n")[:2], err) == (["the end", "compiled"], "")


def test_exit_does_not_run_pending_ops() -> None:
    out, err = run(
        """
        y = x @ x
        thread = threading.Thread(target=lambda: globals().update(z=x * 2))
        thread.start()
        thread.join()
        print("the end")
        """
    )
    assert (out, err) == ("the end\n", "")


def test_exit_does_not_wait_for_the_device() -> None:
    """The exit waits neither for the device nor for the thread that measures runs."""
    out, err = run(
        """
        big = torch.ones(2000, 2000).to("tpu")
        (big @ big).sum().item()
        for _ in range(60):
            big = (big @ big) * 1e-4
        lazytpu.mark_step()
        print(any(not client.is_ready(run.status) for run in engine.inflight.runs))
        sys.exit(7)
        """,
        status=7,
    )
    assert (out, err) == ("True\n", "")


def test_second_signal_ends_the_wait_at_exit() -> None:
    """A signal handler raises during the wait at exit: a second Ctrl-C, or the handler of SIGTERM."""
    for error in ("KeyboardInterrupt", "SystemExit(3)"):
        out, err = run(
            f"""
            import atexit, signal
            def again(number, frame):
                raise {error}
            signal.signal(signal.SIGALRM, again)
            hang()
            lazytpu.options.background_compile = 0.1
            (x @ x).sum().item()
            atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.3)
            atexit.register(print, "the end", flush=True)
            sys.exit(7)
            """,
            status=7,
        )
        assert (out, err) == ("the end\n", "")


def test_compiling_thread_survives_the_loss_of_module_globals() -> None:
    """Python destroys module globals at exit, such as the thread pool that all of jax's MLIR contexts share."""
    out, err = run(
        """
        from jax._src.interpreters import mlir
        module = endless()
        thread = threading.Thread(target=client.compile_module, args=[module], daemon=True)
        thread.start()
        mlir.global_thread_pool = None
        thread.join(2)
        print(thread.is_alive(), flush=True)
        os._exit(7)
        """,
        status=7,
    )
    assert (out, err) == ("True\n", "")


def test_forked_child_does_not_wait_for_compilations_of_its_parent() -> None:
    out, err = run(
        """
        hang()
        y = x @ x
        lazytpu.mark_step()
        pending = y + 1
        faulthandler.cancel_dump_traceback_later()  # its thread exists only in the parent
        if os.fork() == 0:
            engine.background.progress.close = lambda: print("waits", flush=True)
            try:
                pending.sum().item()
            except RuntimeError as error:
                print(str(error), flush=True)
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
        print(pending.sum().item(), flush=True)
        """
    )
    assert "Cannot re-initialize tpu in forked subprocess" in out and out.endswith("\n266240.0\n")
    assert "waits" not in out
    assert err == ""
