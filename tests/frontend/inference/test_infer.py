"""The cache of inferred layouts: its key has all dependencies, and its size a limit."""

import pytest
import torch

from lazytpu.frontend.inference import infer as module
from lazytpu.frontend.inference.infer import infer

aten = torch.ops.aten


def on_tpu(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype).to("tpu")


@pytest.fixture
def asked(monkeypatch):
    """Return the ops whose meta functions are called, starting with an empty cache."""
    calls = []
    original = module.call

    def call(op, arguments):
        calls.append(str(op))
        return original(op, arguments)

    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "call", call)
    return calls


def test_the_same_layouts_are_inferred_once(asked):
    x = on_tpu(3, 4)
    first = infer(aten.add.Tensor, {"self": x, "other": on_tpu(4), "alpha": 2})
    again = infer(aten.add.Tensor, {"self": on_tpu(3, 4), "other": on_tpu(4), "alpha": 2})
    assert first == again
    assert asked == ["aten.add.Tensor"]


def test_the_key_distinguishes_all_dependencies(asked):
    x, ints = on_tpu(4, 4), on_tpu(4, 4, dtype=torch.int64)
    for self, second in ((x, x), (x.t(), x.t()), (x[:1], x), (ints, ints), (ints, True), (ints, 1), (ints, 1.0)):
        inferred = infer(aten.add.Tensor, {"self": self, "other": second})[0]
        meta = [v.to("meta") if isinstance(v, torch.Tensor) else v for v in (self, second)]
        assert inferred.dtype is torch.add(*meta).dtype
    assert len(asked) == 7


def test_the_default_dtype_matters(asked):
    ints = on_tpu(2, dtype=torch.int64)
    assert infer(aten.true_divide.Tensor, {"self": ints, "other": ints})[0].dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert infer(aten.true_divide.Tensor, {"self": ints, "other": ints})[0].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_errors_are_raised_each_time(asked):
    for _ in range(2):
        with pytest.raises(RuntimeError):
            infer(aten.mm.default, {"self": on_tpu(2, 3), "mat2": on_tpu(2, 3)})


def test_a_number_on_the_cpu_is_not_cached(asked):
    for _ in range(2):
        infer(aten.mul.Tensor, {"self": on_tpu(2), "other": torch.tensor(2.0)})
    assert asked == ["aten.mul.Tensor"] * 2
    assert not module._known


def test_the_cache_has_a_limit(asked, monkeypatch):
    monkeypatch.setattr(module, "_KNOWN", 4)
    for n in range(1, 12):
        infer(aten.exp.default, {"self": on_tpu(n)})
        assert len(module._known) <= 4
