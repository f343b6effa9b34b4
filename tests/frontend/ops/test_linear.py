"""Linear layers without gradients: recorded as torch's own function is, and seen as such by all that looks at ops."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import lazytpu
from lazytpu.frontend.ops import linear
from lazytpu.frontend.tensors import recorder, value_of

aten = torch.ops.aten

# The sizes of an input, how it is viewed, and the output features.
INPUTS: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "vector": ((6,), None, 4),
    "matrix": ((3, 6), None, 4),
    "one row": ((1, 6), None, 4),
    "one column": ((3, 1), None, 1),
    "transposed matrix": ((6, 3), lambda x: x.t(), 4),
    "rows apart": ((3, 2, 6), lambda x: x[:, 0], 4),
    "sequences": ((2, 3, 6), None, 4),
    "one token": ((1, 1, 6), None, 4),
    "one sequence": ((1, 3, 6), None, 4),
    "one row of each": ((2, 1, 6), None, 4),
    "transposed sequences": ((3, 2, 6), lambda x: x.transpose(0, 1), 4),
    "strides of nothing": ((4, 3, 6), lambda x: x[:1], 4),
    "sliced sequences": ((2, 5, 6), lambda x: x[:, 1:4], 4),
    "last token": ((2, 5, 6), lambda x: x[:, -1:], 4),
    "expanded": ((1, 3, 6), lambda x: x.expand(2, 3, 6), 4),
    "images": ((2, 3, 2, 6), None, 4),
    "no rows": ((0, 6), None, 4),
    "no sequences": ((2, 0, 6), None, 4),
    "no features": ((2, 3, 0), None, 4),
    "no outputs": ((2, 3, 6), None, 0),
}


def _operands(name: str, biased: bool, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    shape, view, out = INPUTS[name]
    input = torch.randn(shape, dtype=dtype)
    width = (input if view is None else view(input)).shape[-1]
    return input, torch.randn(out, width, dtype=dtype), *([torch.randn(out, dtype=dtype)] if biased else [])


def _viewed(name: str, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    view = INPUTS[name][1]
    return operands if view is None else (view(operands[0]), *operands[1:])


def _records(function: Any, *operands: torch.Tensor) -> list[Any]:
    """Return the keys of the records of a call, and the strides of its result."""
    lazytpu.mark_step()
    with lazytpu.mode("lazy"):
        result = function(*operands)
        keys: list[Any] = [state.key for state in recorder().state.path()]
        lazytpu.mark_step()
    return [*map(str, keys), result.shape, result.stride(), result.storage_offset(), result.dtype]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", INPUTS)
def test_records_are_those_of_torch(name: str, biased: bool) -> None:
    operands = tuple(t.to("tpu") for t in _operands(name, biased))
    with torch.no_grad():
        for _ in range(2):
            viewed = _viewed(name, operands)
            assert _records(linear.linear, *viewed) == _records(linear._torch_linear, *viewed)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_values_are_the_cpus(name: str, biased: bool, context: Any) -> None:
    operands = _operands(name, biased)
    on_device = tuple(nn.Parameter(t.to("tpu")) if i else t.to("tpu") for i, t in enumerate(operands))
    with context():
        expected = functional.linear(*_viewed(name, operands))
        for _ in range(2):
            actual = functional.linear(*_viewed(name, on_device))
            assert actual.is_inference() is expected.is_inference()
            assert not actual.requires_grad
            torch.testing.assert_close(actual.cpu(), expected)


def test_transposed_weight() -> None:
    x, weight = torch.randn(2, 3, 6), torch.randn(6, 4)
    for _ in range(2):
        actual = functional.linear(x.to("tpu"), weight.to("tpu").t())
        torch.testing.assert_close(actual.cpu(), functional.linear(x, weight.t()))


def test_conjugated_and_negated_operands() -> None:
    x, weight = torch.randn(2, 3, 6, dtype=torch.complex64), torch.randn(4, 6, dtype=torch.complex64)
    on_device = x.to("tpu"), weight.to("tpu")
    for _ in range(2):
        torch.testing.assert_close(
            functional.linear(on_device[0].conj(), on_device[1]).cpu(), functional.linear(x.conj(), weight)
        )
        torch.testing.assert_close(
            functional.linear(on_device[0].conj().imag, on_device[1].real).cpu(),
            functional.linear(x.conj().imag, weight.real),
        )


@pytest.mark.parametrize(
    "shapes", [((2, 3, 6), (4, 5), None), ((2, 3, 6), (4, 6), (5,)), ((2, 3, 6), (4, 6, 1), None), ((), (4, 6), None)]
)
def test_errors_are_those_of_torch(shapes: tuple[Any, ...]) -> None:
    operands: list[Any] = [None if s is None else torch.ones(s, device="tpu") for s in shapes]
    with torch.no_grad():
        errors: list[BaseException] = []
        for call in (functional.linear, linear._torch_linear):
            with pytest.raises(RuntimeError) as caught:
                call(*operands)
            errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])


def test_operand_on_the_cpu_is_refused() -> None:
    for devices in (("cpu", "tpu"), ("tpu", "cpu")):
        x, weight = torch.ones(2, 3, device=devices[0]), torch.ones(4, 3, device=devices[1])
        with torch.no_grad(), pytest.raises(RuntimeError, match="on the same device"):
            functional.linear(x, weight)


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("biased", [False, True])
def test_dispatch_modes_see_the_ops_of_torch(biased: bool) -> None:
    seen: list[list[str]] = []
    for device in ("cpu", "tpu"):
        operands = [t.to(device) for t in _operands("sequences", biased)]
        with torch.no_grad(), _Seen() as mode:
            functional.linear(*operands)
        seen.append(mode.ops)
    assert seen[0] == seen[1]
    assert "aten.addmm.default" in seen[1] or "aten.mm.default" in seen[1]


def test_flops_are_counted() -> None:
    x, weight = torch.ones(2, 3, 6, device="tpu"), torch.ones(4, 6, device="tpu")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional.linear(x, weight)
    assert counter.get_total_flops() == 2 * 2 * 3 * 6 * 4


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_gradients_forward_mode_and_transforms() -> None:
    x, weight = torch.randn(2, 3, 6), torch.randn(4, 6)
    results: list[Any] = []
    for device in ("cpu", "tpu"):
        a, b = x.to(device), weight.to(device)
        gradient = torch.func.grad(lambda w, a=a: functional.linear(a, w).sin().sum())(b)
        tangent = torch.func.jvp(lambda w, a=a: functional.linear(a, w), (b,), (b.cos(),))[1]
        batched = torch.func.vmap(lambda row, b=b: functional.linear(row, b))(a)
        b = b.requires_grad_()
        output = functional.linear(a, b)
        assert output.grad_fn is not None
        results.append([t.detach().cpu() for t in (gradient, tangent, batched, output)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_autocast_casts_the_operands() -> None:
    x, weight = torch.randn(2, 3, 6, device="tpu"), torch.randn(4, 6, device="tpu")
    with torch.no_grad(), torch.autocast("tpu", torch.bfloat16):
        assert functional.linear(x, weight).dtype is torch.bfloat16


def test_subclass_is_kept() -> None:
    class Tagged(torch.Tensor):
        pass

    x = torch.ones(2, 3, device="tpu").as_subclass(Tagged)
    with torch.no_grad():
        assert type(functional.linear(x, torch.ones(4, 3, device="tpu"))) is Tagged


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_LIMIT", 2)
    weight = torch.ones(4, 3, device="tpu")
    for rows in range(1, 6):
        assert functional.linear(torch.ones(rows, 3, device="tpu"), weight).shape == (rows, 4)
    assert len(linear._plans) <= 2


@pytest.mark.parametrize("gaps", [lambda x: x[::2], lambda x: x[:1].expand(len(x) // 2)], ids=["strided", "expanded"])
@pytest.mark.parametrize("name", INPUTS)
def test_bias_with_gaps_is_added_as_torch_does(name: str, gaps: Any) -> None:
    operands = _operands(name, False, torch.bfloat16)
    operands = *operands, torch.randn(2 * len(operands[1]), dtype=torch.bfloat16)
    on_cpu, on_tpu = (_viewed(name, (*x[:2], gaps(x[2]))) for x in (operands, [x.to("tpu") for x in operands]))
    with torch.no_grad():
        expected = functional.linear(*on_cpu)
        for _ in range(2):
            assert _records(linear.linear, *on_tpu) == _records(linear._torch_linear, *on_tpu)
            result = functional.linear(*on_tpu)
            assert (result._is_view(), result._version) == (expected._is_view(), expected._version)
            torch.testing.assert_close(result.cpu(), expected)


def test_result_of_no_grad_is_a_view_that_autograd_checks() -> None:
    """As on the CPU, where with a bias the result of a 3-D input is a view of the product."""
    seen = []
    for device in ("cpu", "tpu"):
        x, weight, bias = (torch.ones(size, device=device) for size in ((2, 2, 3), (4, 3), (4,)))
        with torch.no_grad():
            assert not functional.linear(x, weight)._is_view()
            result = functional.linear(x, weight, bias)
        assert result._base is not None
        with pytest.raises(RuntimeError, match="view was created in no_grad mode") as caught:
            result.mul_(torch.ones(4, device=device, requires_grad=True))
        seen.append((result._is_view(), tuple(result._base.shape), str(caught.value)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("biased", [False, True])
def test_known_layer_creates_no_views(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = _operands("sequences", biased)
    expected = functional.linear(*operands)
    on_device = [t.to("tpu") for t in operands]
    for known in (False, True):
        with torch.no_grad(), monkeypatch.context() as patch:
            if known:
                patch.delattr(linear, "reinterpret")
            lazytpu.mark_step()
            actual = functional.linear(*on_device)
            assert (actual._base is None) is not biased
            assert actual._base is None or actual._base.shape == (6, 4)
            lazytpu.mark_step()
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("biased", [False, True])
def test_layers_that_follow_on_a_known_one(biased: bool) -> None:
    """The second trace goes another way than the first, after a layer that both have."""
    x, weight, *bias = (t.to("tpu") for t in _operands("sequences", biased))
    square, others = torch.randn(4, 4, device="tpu"), [torch.randn(4, device="tpu") for _ in bias]

    def run(layer: Any, *weights: torch.Tensor) -> list[Any]:
        lazytpu.mark_step()
        with lazytpu.mode("lazy"), torch.no_grad():
            y = layer(x, weight, *bias)
            for w in weights:
                y = layer(y, w, *others)
            r = recorder()
            trace = [str(state.key) for state in r.state.path()], r.slots, len(r.buffers), r.slots == len(r.values)
            lazytpu.mark_step()
        return [*trace, y.cpu()]

    for weights in ((square,), (square, square.t()), (square.t(),), (square, square)):
        *actual, result = run(linear.linear, *weights)
        *expected, same = run(linear._torch_linear, *weights)
        assert actual == expected
        assert torch.equal(result, same)


def test_known_layer_takes_an_operand_of_another_thread() -> None:
    x, weight = torch.randn(2, 3, 6), torch.randn(4, 6)
    on_device = weight.to("tpu")
    for _ in range(3):
        lazytpu.mark_step()
        with ThreadPoolExecutor(1) as pool, torch.no_grad():
            doubled = pool.submit(lambda: x.to("tpu") * 2).result()
            torch.testing.assert_close(functional.linear(doubled, on_device).cpu(), functional.linear(x * 2, weight))


def test_known_layer_keeps_to_the_precision_of_its_record() -> None:
    x, weight = torch.randn(2, 3, 6, device="tpu"), torch.randn(4, 6, device="tpu")
    states: list[Any] = []
    try:
        for precision in ("highest", "high", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            lazytpu.mark_step()
            with lazytpu.mode("lazy"), torch.no_grad():
                result = functional.linear(x, weight)
                states.append(recorder().state)
                lazytpu.mark_step()
            del result
    finally:
        torch.set_float32_matmul_precision("highest")
    assert states[0] is states[2]
    assert states[1] is states[3]
    assert states[0] is not states[1]


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_eager_modes_run_a_known_layer_at_once(mode: str) -> None:
    x, weight = torch.randn(2, 3, 6), torch.randn(4, 6)
    on_device = x.to("tpu"), weight.to("tpu")
    with lazytpu.mode(mode), torch.no_grad():
        for _ in range(3):
            result = functional.linear(*on_device)
            assert value_of(result).buffer is not None
            torch.testing.assert_close(result.cpu(), functional.linear(x, weight))
