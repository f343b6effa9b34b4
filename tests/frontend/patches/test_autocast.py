"""`torch.autocast("tpu")`: its policies, and that its lists are CUDA's."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lazytpu.frontend.patches import autocast


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_default_is_bfloat16_in_a_thread_that_checkpointed_before(reentrant: bool) -> None:
    """A checkpoint, even of CPU tensors, sets up the accelerator's autocast in the backward pass, and torch undoes that
    with the pass."""
    dtypes: list[torch.dtype] = []

    def work() -> None:
        x = torch.ones(3, 3, requires_grad=True)
        checkpoint(torch.mm, x, x, use_reentrant=reentrant).sum().backward()
        with torch.autocast("tpu"):
            dtypes.append((x.to("tpu") @ x.to("tpu")).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert dtypes == [torch.bfloat16]


def test_lower_precision_ops() -> None:
    x, w = torch.randn(4, 8).to("tpu"), torch.randn(3, 8).to("tpu").requires_grad_()
    with torch.autocast("tpu"):
        y = F.linear(x, w)
        assert y.dtype == (x @ x.t()).dtype == torch.bfloat16
        with torch.autocast("tpu", enabled=False):
            assert F.linear(x, w).dtype == torch.float32
    y.float().sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == torch.float32
    with torch.autocast("tpu", dtype=torch.float16):
        assert F.linear(x, w).dtype == torch.float16
    assert F.linear(x, w).dtype == torch.float32


def test_float32_regions_widen_the_operands_of_matrix_products() -> None:
    """As with CUDA: routers of mixtures of experts ask for it amid bfloat16."""
    x, w = torch.randn(4, 8).to("tpu").bfloat16(), torch.randn(3, 8).to("tpu").bfloat16().requires_grad_()
    with torch.autocast("tpu", dtype=torch.float32):
        y = F.linear(x, w)
        assert (x + x).dtype == torch.bfloat16
    torch.testing.assert_close(y.detach().cpu(), F.linear(x.cpu().float(), w.detach().cpu().float()))
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == torch.bfloat16


def test_float32_ops() -> None:
    x = torch.randn(4, 8).to("tpu").bfloat16()
    with torch.autocast("tpu"):
        assert x.exp().dtype == F.layer_norm(x, (8,)).dtype == F.mse_loss(x, x).dtype == torch.float32
        assert x.sum().dtype == F.softmax(x, -1).dtype == torch.float32
        assert x.sum(dtype=torch.bfloat16).dtype == torch.bfloat16
        assert (x + x).dtype == F.relu(x).dtype == torch.bfloat16


def test_widest_ops() -> None:
    x = torch.randn(4, 8).to("tpu")
    with torch.autocast("tpu"):
        assert torch.atan2(x, x.bfloat16()).dtype == torch.float32
        assert torch.atan2(x.bfloat16(), x.bfloat16()).dtype == torch.bfloat16
        assert torch.stack([x, x.bfloat16()]).dtype == torch.float32


def test_ops_that_autocast_does_not_change() -> None:
    x = torch.randn(4, 4)
    with torch.autocast("tpu"):
        assert (x @ x).dtype == torch.float32  # on the CPU
        y = x.to("tpu").double()
        assert (y @ y).dtype == torch.float64
        z = torch.arange(4).to("tpu")
        assert z.sum().dtype == torch.int64
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(y.sigmoid(), y.sigmoid())


def test_other_threads_default_to_bfloat16() -> None:
    dtypes: list[torch.dtype] = []

    def work() -> None:
        with torch.autocast("tpu"):
            dtypes.append(torch.get_autocast_dtype("tpu"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert dtypes == [torch.bfloat16]


def test_lists_are_cudas() -> None:
    """Compared with the lists in torch's header; each missing entry has a reason."""
    header = Path(torch.__file__).parent.joinpath("include/ATen/autocast_mode.h").read_text()
    ours = {
        "LOWER_PRECISION_FP": autocast.LOWER_PRECISION,
        "FP32": autocast.FLOAT32,
        "FP32_SET_OPT_DTYPE": autocast.FLOAT32_RESULT,
        "PROMOTE": autocast.WIDEST,
    }
    # Overloads of listed ops; cat-like promotion of CUDA's own list; and the kernel that only CUDA's attention calls.
    extra = {
        "conv1d.padding",
        "conv2d.padding",
        "conv3d.padding",
        "stack",
        "nll_loss_nd",
        "norm.Scalar",
        "norm.ScalarOpt_dim",
    }
    fewer = {"_scaled_dot_product_flash_attention"}
    for name, names in ours.items():
        body = re.search(rf"#define AT_FORALL_{name}\(_\)(.*?)\n\n", header, re.DOTALL)
        assert body is not None
        listed = {".".join(filter(None, pair)) for pair in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])}
        assert set(names) - extra == listed - fewer
        assert all(autocast.overload(n) for n in names)


def test_custom_functions_take_the_regions_dtype() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("tpu")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = torch.ones(2, 2, device="tpu", requires_grad=True)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        y = Double.apply(x @ x)
    assert y.dtype is torch.float32
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[8.0] * 2] * 2


def test_weights_are_cast_once_and_get_float32_gradients() -> None:
    layer, x = torch.nn.Linear(3, 3).to("tpu"), torch.ones(2, 3, device="tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        with torch.no_grad():
            layer(x)
        y = layer(x) + layer(x)  # the cast made without gradients is not reused here
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32
    torch.testing.assert_close(layer.weight.grad.cpu(), torch.full((3, 3), 4.0))


def test_loss_scaling_skips_steps_that_overflow_and_is_saved() -> None:
    layer, x = torch.nn.Linear(3, 3).to("tpu"), torch.ones(2, 3, device="tpu")
    for fused in (False, True):
        optimizer = torch.optim.AdamW(layer.parameters(), fused=fused)
        scaler = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=2)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("tpu", dtype=torch.float16):
                loss = layer(x).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 16.0
        restored = torch.amp.GradScaler("tpu")
        restored.load_state_dict(scaler.state_dict())
        optimizer.zero_grad()
        before = layer.weight.detach().cpu()
        restored.scale(layer(x * float("inf")).sum()).backward()
        restored.step(optimizer)
        restored.update()
        assert torch.equal(before, layer.weight.detach().cpu())
        assert restored.get_scale() == 8.0
