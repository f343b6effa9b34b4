"""Attention and encoder modules in evaluation, utilities of torch.nn, and optimizers, against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, stateless
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.autograd.agreement import agree, filled, numbers

Padding = [[False] * 5, [False, False, False, True, True]]


def test_attention_modules_agree_in_evaluation() -> None:
    def run(d: str) -> Any:
        m = filled(nn.MultiheadAttention(8, 2, batch_first=True), d).eval()
        x, y = numbers(2, 5, 8, device=d), numbers(2, 5, 8, device=d, seed=1)
        padding = torch.tensor(Padding, device=d)
        later = torch.ones(5, 5, device=d).tril() == 0
        with torch.no_grad():
            return [
                m(x, x, x),
                m(x, y, y, average_attn_weights=False),
                m(x, x, x, need_weights=False),
                m(x, x, x, key_padding_mask=padding),
                m(x, x, x, key_padding_mask=padding, attn_mask=later, need_weights=False),
                m(x, x, x, key_padding_mask=torch.ones_like(padding)),
            ]

    agree(run)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # the CPU's way
@pytest.mark.parametrize("first", [False, True])
def test_encoders_agree_in_evaluation(first: bool) -> None:
    def run(d: str) -> Any:
        def make() -> nn.TransformerEncoderLayer:
            return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first, activation="gelu")

        def stack(norm: nn.Module | None) -> nn.Module:
            return filled(nn.TransformerEncoder(make(), 2, norm, enable_nested_tensor=not first), d).eval()

        plain, normed = stack(None), stack(nn.LayerNorm(8))
        x, padding = numbers(2, 5, 8, device=d), torch.tensor(Padding, device=d)
        later = nn.Transformer.generate_square_subsequent_mask(5, device=d)
        with torch.no_grad():
            return [
                plain(x),
                plain(x, mask=later, is_causal=True),
                plain(x, src_key_padding_mask=padding),
                normed(x, src_key_padding_mask=padding),
                plain(x, src_key_padding_mask=padding.flip(1)),
            ]

    agree(run)


def test_transformer_agrees_with_the_cpu() -> None:
    def run(d: str) -> Any:
        model = filled(nn.Transformer(8, 2, 1, 1, 16, batch_first=True, dropout=0), d)
        x, y = numbers(2, 5, 8, device=d), numbers(2, 4, 8, device=d)
        out = model(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(4, device=d))
        out.square().sum().backward()
        with torch.no_grad():
            return out, [p.grad for p in model.parameters()], model.eval()(x, y)

    agree(run, rtol=1e-3, atol=1e-4)


class Symmetric(nn.Module):
    """A parametrization with an inverse."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w.triu() + w.triu(1).mT

    def right_inverse(self, w: torch.Tensor) -> torch.Tensor:
        return w.triu()


def trained(layer: nn.Module, x: torch.Tensor) -> Any:
    layer.zero_grad()
    y = layer(x)
    y.square().sum().backward()
    return y, [p.grad for p in layer.parameters()]


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.(weight|spectral)_norm` is deprecated:FutureWarning")
def test_parametrizations_agree_with_the_cpu() -> None:
    def run(d: str) -> Any:
        x, results = numbers(4, 3, device=d), []
        results.append(trained(parametrizations.weight_norm(filled(nn.Linear(3, 2), "cpu")).to(d), x))
        results.append(trained(nn.utils.weight_norm(filled(nn.Linear(3, 2), "cpu")).to(d), x))
        layer = filled(nn.Linear(3, 3), d)
        parametrize.register_parametrization(layer, "weight", Symmetric())
        results.append(trained(layer, x))
        parametrize.remove_parametrizations(layer, "weight")
        results.append(trained(layer, x))
        with stateless._reparametrize_module(layer, {"weight": numbers(3, 3, device=d, seed=7)}):
            results.append(layer(x))
        vector = nn.utils.parameters_to_vector(layer.parameters())
        nn.utils.vector_to_parameters(vector * 2, layer.parameters())
        orthogonal = parametrizations.orthogonal(nn.Linear(3, 3)).to(d).weight
        spectral = parametrizations.spectral_norm(filled(nn.Linear(3, 4), "cpu"), n_power_iterations=40).to(d)
        return results, vector, layer.weight, orthogonal @ orthogonal.mT, trained(spectral, x)

    agree(run, rtol=1e-3, atol=1e-4)


def test_pruning_and_clipping_agree_with_the_cpu() -> None:
    def run(d: str) -> Any:
        x, layer, results = numbers(4, 3, device=d), filled(nn.Linear(3, 2), d), []
        results.append(trained(layer, x))
        nn.utils.clip_grad_value_(layer.parameters(), 0.1)
        results.append([p.grad.clone() for p in layer.parameters()])
        trained(layer, x)
        results.append(nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True))
        results.append(nn.utils.clip_grad_norm_(layer.parameters(), 0.5, norm_type=torch.inf, foreach=False))
        prune.l1_unstructured(layer, "weight", amount=2)
        prune.ln_structured(layer, "weight", amount=1, n=2, dim=1)
        results.append(trained(layer, x))
        prune.remove(layer, "weight")
        return results, layer.weight

    agree(run)


def test_averaged_models_agree_with_the_cpu() -> None:
    def run(d: str) -> Any:
        model = filled(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), d)
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        swa, optimizer = AveragedModel(model), torch.optim.SGD(model.parameters(), lr=0.05)
        schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
        for i in range(3):
            optimizer.zero_grad()
            model(numbers(5, 3, device=d, seed=i)).square().mean().backward()
            optimizer.step()
            ema.update_parameters(model)
            swa.update_parameters(model)
            schedule.step()
        update_bn([numbers(5, 3, device=d, seed=9)], swa)
        return list(ema.parameters()), list(swa.parameters()), list(swa.module.buffers())

    agree(run, rtol=1e-3, atol=1e-4)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "LBFGS": {"line_search_fn": "strong_wolfe", "max_iter": 4},
    "Adadelta": {},
    "Adagrad": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "ASGD": {},
    "Adafactor": {},
    "Adam": {"amsgrad": True, "maximize": True},
}


def test_optimizers_agree_with_the_cpu() -> None:
    def run(d: str) -> Any:
        results = []
        for name, options in OPTIMIZERS.items():
            layer = filled(nn.Linear(3, 2, bias=False), d).double()
            x = numbers(6, 3, device=d, dtype=torch.float64)
            optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.05, **options)

            def closure(layer: nn.Module = layer, optimizer: Any = optimizer, x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = torch.tanh(layer(x)).square().mean()
                loss.backward()
                return loss

            for _ in range(2):
                optimizer.step(closure)
            results.append(layer.weight)
        return results

    agree(run)
