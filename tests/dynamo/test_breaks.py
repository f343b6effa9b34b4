"""Graph breaks: ops run one by one between graphs, and Dynamo does not trace the kernels that record them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import lazytpu
from lazytpu.dynamo.breaks import graph_breaks


# Dynamo of torch 2.15 reads `.grad` of a result.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_dynamo_traces_no_kernel_and_no_engine() -> None:
    """Dynamo gives up on a module, and its parts run as usual: the first ops of a kind, programs, reads."""
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 3, batch_first=True)
    x = torch.linspace(-1, 1, 16).reshape(2, 2, 4)
    expected = lstm(x)[0]
    on_device = copy.deepcopy(lstm).to("tpu")

    def function(x: torch.Tensor) -> float:
        return on_device(x.clone())[0].sum().item()

    got = torch.compile(function)(x.to("tpu"))
    torch.testing.assert_close(got, float(expected.detach().sum()), rtol=1e-4, atol=1e-5)
    codes = [reference() for reference in torch._dynamo.convert_frame.input_codes.seen]
    seen = [code.co_filename for code in codes if code is not None]
    assert __file__ in seen
    assert not [file for file in seen if "<kernel of" in file or "/jax/" in file or "/xdsl/" in file]


def test_a_function_with_reads_branches_and_cuts() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum().item() > 3:
            y = y + 1
        z = y * int(y[0])
        lazytpu.mark_step()
        w = z.sin()
        return w - 1 if (w > 0).all() else w

    compiled = torch.compile(function)
    for value in (1.0, 2.0, -3.0):
        x = torch.full((3,), value)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), function(x), rtol=1e-4, atol=1e-5)
    assert any("item" in broken.reason for broken in graph_breaks())


def test_results_only_other_devices_need() -> None:
    """Attention on the device returns None where other devices return random states; also when run op by op."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.scaled_dot_product_attention(x, x, x)
        return y + x.cpu().sum().to(x.device)

    x = torch.linspace(-1, 1, 32).reshape(1, 2, 4, 4)
    on_device = x.to("tpu").requires_grad_()
    on_host = x.clone().requires_grad_()
    expected, got = function(on_host), torch.compile(function)(on_device)
    expected.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert on_host.grad is not None and on_device.grad is not None
    torch.testing.assert_close(on_device.grad.cpu(), on_host.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::lazytpu.dynamo.varying.SizeWarning")
def test_results_only_other_devices_need_at_varying_sizes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)

    compiled = torch.compile(function, dynamic=True)
    for length in (3, 5):
        on_host = torch.linspace(-1, 1, 8 * length).reshape(1, 2, length, 4).requires_grad_()
        on_device = on_host.detach().to("tpu").requires_grad_()
        expected, got = function(on_host), compiled(on_device)
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        (expected.sum() + got.sum().cpu()).backward()
        assert on_host.grad is not None and on_device.grad is not None
        torch.testing.assert_close(on_device.grad.cpu(), on_host.grad, rtol=1e-4, atol=1e-5)


def test_tangents_of_dual_tensors_go_through() -> None:
    compiled = torch.compile(lambda x: x * x)
    x = torch.arange(3.0, device="tpu")
    compiled(x)
    with forward_ad.dual_level():
        result = compiled(forward_ad.make_dual(x, torch.ones_like(x)))
        assert forward_ad.unpack_dual(result).tangent.tolist() == [0, 2, 4]


def test_an_encoder_of_torch_is_one_graph() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).to("tpu")
    x = torch.linspace(-1, 1, 24, device="tpu").reshape(1, 3, 8)
    compiled = torch.compile(encoder, fullgraph=True)
    torch.testing.assert_close(compiled(x).detach().cpu(), encoder(x).detach().cpu(), rtol=1e-4, atol=1e-5)
