"""`scaled_dot_product_attention` on the device: one record in each direction, equal to the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import lazytpu
from lazytpu.frontend.tensors import recorder
from tests.frontend.alike import records

Masks = {
    "none": lambda: None,
    "bool with a hidden row": lambda: torch.tensor([[True, True, False], [False] * 3, [True, False, True]]),
    "float by batch": lambda: torch.randn(2, 1, 1, 3),
    "-inf in a whole row": lambda: torch.tensor([[0.0, 1.0, -1.0], [-torch.inf] * 3, [0.5, -torch.inf, 0.0]]),
}


def heads(*shape: int, transposed: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    batch, number, length, width = shape
    if transposed:
        return torch.randn(batch, length, number, width, dtype=dtype).transpose(1, 2)
    return torch.randn(shape, dtype=dtype)


def both(operands: list[torch.Tensor], mask: torch.Tensor | None, **options: Any) -> list[list[torch.Tensor]]:
    """Return [output, gradients of everything that has one] on the CPU and on the device."""
    results = []
    grad = torch.randn(*operands[0].shape[:3], operands[2].shape[3], dtype=operands[0].dtype)
    for device in ("cpu", "tpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in operands]
        attn_mask = mask
        if mask is not None:
            attn_mask = mask.detach().to(device).requires_grad_(mask.requires_grad)
            leaves += [attn_mask] if mask.requires_grad else []
        out = F.scaled_dot_product_attention(*leaves[:3], attn_mask, **options)
        results.append([out.detach(), *torch.autograd.grad(out, leaves, grad.to(device))])
    return results


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", Masks)
def test_values_gradients_and_strides_agree_with_the_cpu(mask: str, transposed: bool) -> None:
    torch.manual_seed(0)
    operands = [heads(2, 2, 3, 4, transposed=transposed) for _ in range(3)]
    expected, got = both(operands, Masks[mask]())
    for e, g in zip(expected, got, strict=True):
        torch.testing.assert_close(g.cpu(), e, rtol=1e-5, atol=1e-5)
        assert g.stride() == e.stride()


@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-6), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)], ids=str
)
def test_dtypes_with_shared_heads_causal_and_scaled(dtype: torch.dtype, close: float) -> None:
    torch.manual_seed(0)
    operands = [heads(1, h, n, 4, transposed=True, dtype=dtype) for h, n in ((4, 3), (2, 5), (2, 5))]
    expected, got = both(operands, None, is_causal=True, scale=0.3, enable_gqa=True)
    for e, g in zip(expected, got, strict=True):
        torch.testing.assert_close(g.cpu(), e, rtol=close, atol=close)


def test_a_float_mask_gets_its_gradient() -> None:
    torch.manual_seed(0)
    mask = torch.randn(1, 2, 1, 3, requires_grad=True)
    expected, got = both([heads(2, 2, 3, 4, transposed=False) for _ in range(3)], mask)
    assert len(got) == 5
    for e, g in zip(expected, got, strict=True):
        torch.testing.assert_close(g.cpu(), e, rtol=1e-5, atol=1e-5)


def test_attention_is_one_record_each_way() -> None:
    q = torch.randn(2, 2, 3, 4, device="tpu", requires_grad=True)
    before = records()
    out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert records() - before == 1
    before = records()
    grads = torch.autograd.grad(out, q, torch.ones_like(out.detach()))
    assert records() - before == 4, "ones, the gradients of query, key and value, and two sums of them"
    del grads


def test_dropout_follows_the_generator_and_backward_drops_the_same() -> None:
    q = torch.randn(1, 1, 24, 8, device="tpu")
    v = torch.eye(24, device="tpu")[None, None].requires_grad_()
    torch.manual_seed(5)
    first = F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
    second = F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
    torch.manual_seed(5)
    again = F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    (grad,) = torch.autograd.grad(first, v, torch.eye(24, device="tpu")[None, None])
    torch.testing.assert_close(grad.cpu(), first.detach().transpose(2, 3).cpu())


def test_unsupported_arguments_take_the_math_path() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 3, 4), torch.randn(2, 1, 3, 4)
    cases: list[tuple[torch.Tensor, ...]] = [(q[0], q[0], q[0]), (q, k, k), (q[:, :, :0], q, q)]
    for case in cases:
        expected = F.scaled_dot_product_attention(*case)
        got = F.scaled_dot_product_attention(*(t.to("tpu") for t in case))
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_second_derivatives_by_the_math_path() -> None:
    torch.manual_seed(0)
    results = []
    for device in ("cpu", "tpu"):
        q = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, q, q)
            (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), q)[0].cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # torch's own, at the import of forward mode
def test_functional_transforms() -> None:
    torch.manual_seed(0)
    x, t = torch.randn(2, 2, 1, 3, 4), torch.randn(2, 2, 1, 3, 4)

    def energy(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x).square().sum()

    for transform in (torch.func.vmap(torch.func.grad(energy)), torch.func.vmap(energy)):
        got = transform(x.to("tpu"))
        with sdpa_kernel(SDPBackend.MATH):
            torch.testing.assert_close(got.cpu(), transform(x), rtol=1e-4, atol=1e-5)
    got = torch.func.jvp(energy, (x[0].to("tpu"),), (t[0].to("tpu"),))
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.func.jvp(energy, (x[0],), (t[0],))
    torch.testing.assert_close([g.cpu() for g in got], list(expected), rtol=1e-4, atol=1e-4)


def test_wrong_operands_are_refused_as_on_the_cpu() -> None:
    q, doubles = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4, dtype=torch.float64)
    for arguments in (
        (q, doubles, q),
        (q, q[..., :2], q),
        (q, q, q, torch.zeros(7, 7)),
        (q, q, q, torch.zeros(3, 3).int()),
    ):
        with pytest.raises(RuntimeError) as expected:
            F.scaled_dot_product_attention(*arguments)
        with pytest.raises(type(expected.value)):
            F.scaled_dot_product_attention(*(t.to("tpu") for t in arguments))


@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (2, 1, 4, 6)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_and_causal_hide_together(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    mask = torch.rand(shape) > 0.2
    mask[..., 0] = True
    mask = mask if dtype is torch.bool else mask * 0.5
    on_device = [t.to("tpu") for t in (q, k, v, mask)]
    try:
        expected = F.scaled_dot_product_attention(q, k, v, mask, is_causal=True)
    except RuntimeError as error:  # from torch 2.14 on
        with pytest.raises(RuntimeError, match=str(error)):
            F.scaled_dot_product_attention(*on_device, is_causal=True)
    else:
        result = F.scaled_dot_product_attention(*on_device, is_causal=True)
        torch.testing.assert_close(result.cpu(), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_without_gradients_is_recorded_as_with_them(masked: bool) -> None:
    query, key, value = (torch.randn(2, 4, 3, 8, device="tpu") for _ in range(3))
    mask = torch.ones(3, 3, dtype=torch.bool, device="tpu") if masked else None
    seen: list[Any] = []
    for differentiated in (False, True):
        for tensor in (query, key, value):
            tensor.requires_grad_(differentiated)
        lazytpu.mark_step()
        with lazytpu.mode("lazy"):
            output = F.scaled_dot_product_attention(query, key, value, mask, is_causal=not masked)
            seen.append(([str(state.key) for state in recorder().state.path()], output.detach().cpu()))
        assert (output.grad_fn is not None) is differentiated
    assert seen[0][0] == seen[1][0]
    assert torch.equal(seen[0][1], seen[1][1])


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def test_attention_without_gradients_is_seen_by_dispatch_modes() -> None:
    query = torch.randn(2, 4, 3, 8, device="tpu")
    with torch.no_grad(), _Seen() as seen:
        F.scaled_dot_product_attention(query, query, query)
    assert seen.ops == ["aten._scaled_dot_product_fused_attention_overrideable.default"]
