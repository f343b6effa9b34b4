"""The steps that are judged, each as a function that can be called again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from lazytpu.kernels.ragged_paged_attention import ragged_paged_attention
from tools.judge.models import VOCABULARY, Gpt, Llama, Residual, ResnetBlock

Step = Callable[[], torch.Tensor]
DEVICE = "tpu"
TOKENS = 512  # of a step of the language models


@dataclass(frozen=True)
class Case:
    """A step: its description and its constructor. A `distributed` one is made in an imagined job with a rank on each
    chip of the topology. `per_op` says whether it is compared with single-op programs."""

    about: str
    make: Callable[[], Step]
    distributed: bool = False
    per_op: bool = False


def language(model: nn.Module) -> Step:
    """An AdamW step in mixed precision on next tokens."""
    model = model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, VOCABULARY, (1, TOKENS + 1)).to(DEVICE)

    def step() -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def images() -> Step:
    """An SGD step with momentum on images."""
    model = ResnetBlock().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    x, y = torch.randn(32, 64, 32, 32).to(DEVICE), torch.randint(0, 100, (32,)).to(DEVICE)

    def step() -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def wide(width: int = 1024, layers: int = 4, rows: int = 512) -> Step:
    """An SGD step by DistributedDataParallel of an MLP whose gradients take longer to reduce than to compute."""
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss

    return settled(step, torch.randn(8, width), torch.randn(rows, width))


def settled(step: Callable[[torch.Tensor], torch.Tensor], few: torch.Tensor, many: torch.Tensor) -> Step:
    """Return the step on `many` inputs, after two steps on a few: in the first, DistributedDataParallel and FSDP2 learn
    the order of gradients and of parameters."""
    for _ in range(2):
        step(few.to(DEVICE))
    x = many.to(DEVICE)
    return lambda: step(x)


def residual(shard: bool, width: int, rows: int) -> Step:
    """An AdamW step in mixed precision of residual MLPs: `fully_shard` of each one, or DistributedDataParallel."""
    model = nn.Sequential(*(Residual(width) for _ in range(4))).to(DEVICE)
    if shard:
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for module in (*model, model):
            fully_shard(module, mp_policy=half)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=not shard):
            loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return settled(step, torch.randn(8, width), torch.randn(rows, width))


def sharded_llama(tokens: int = 2048) -> Step:
    """An AdamW step on next tokens by FSDP2, each block a unit of its own."""
    model = Llama(2, tokens=tokens).to(DEVICE)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for module in (*model.blocks, model):
        fully_shard(module, mp_policy=half)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    short, whole = (torch.randint(0, VOCABULARY, (1, length + 1)) for length in (8, tokens))
    return settled(step, short, whole)


def small_tensors(count: int = 50, size: int = 768) -> Step:
    """AdamW alone, on many small parameters whose gradients are there."""
    parameters = [nn.Parameter(torch.randn(size).to(DEVICE)) for _ in range(count)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for parameter in parameters:
        parameter.grad = torch.randn(size).to(DEVICE)

    def step() -> torch.Tensor:
        optimizer.step()
        return parameters[0]

    return step


def attention(tokens: int = 8192, heads: int = 4, size: int = 128) -> Step:
    """Causal attention and its gradients."""
    q, k, v, g = (torch.randn(1, heads, tokens, size, dtype=torch.bfloat16).to(DEVICE) for _ in range(4))
    for operand in (q, k, v):
        operand.requires_grad_()

    def step() -> torch.Tensor:
        q.grad = k.grad = v.grad = None
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.backward(g)
        return out

    return step


def packed(tokens: int = 8192, heads: int = 4, size: int = 128) -> Step:
    """Attention and its gradients for documents of 1,000 tokens, packed into one row."""
    q, k, v, g = (torch.randn(1, heads, tokens, size, dtype=torch.bfloat16).to(DEVICE) for _ in range(4))
    for operand in (q, k, v):
        operand.requires_grad_()
    documents = (torch.arange(tokens) // 1000)[None].to(DEVICE)

    def step() -> torch.Tensor:
        q.grad = k.grad = v.grad = None
        places = torch.arange(tokens, device=DEVICE)
        mask = (documents[:, :, None] == documents[:, None]) & (places[:, None] >= places)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        out.backward(g)
        return out

    return step


def experts(dense: bool = False, tokens: int = 4096, width: int = 512, hidden: int = 1024, count: int = 16) -> Step:
    """An SGD step of a mixture of experts: each token is sent to the two experts with the highest scores. If `dense`,
    all experts compute all tokens."""
    router = nn.Linear(width, count, dtype=torch.bfloat16).to(DEVICE)
    shapes = ((count, width, hidden), (count, hidden, width))
    weights = [nn.Parameter(torch.randn(shape, dtype=torch.bfloat16).to(DEVICE) * 0.02) for shape in shapes]
    optimizer = torch.optim.SGD([*router.parameters(), *weights], lr=0.1)
    x = torch.randn(tokens, width, dtype=torch.bfloat16).to(DEVICE)

    def grouped(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        order = chosen.flatten().argsort(stable=True)
        ends = F.one_hot(chosen.flatten(), count).sum(0).cumsum(0).int()
        hidden_rows = F.silu(F.grouped_mm(x[order // 2], weights[0], offs=ends))
        results = F.grouped_mm(hidden_rows, weights[1], offs=ends) * scores.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // 2, results)

    def of_all(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        results = F.silu(x @ weights[0]) @ weights[1]
        share = torch.zeros(tokens, count, dtype=x.dtype, device=DEVICE).scatter(1, chosen, scores)
        return (results * share.t()[:, :, None]).sum(0)

    def step() -> torch.Tensor:
        chosen = router(x).softmax(-1).topk(2)
        loss = (of_all if dense else grouped)(*chosen).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def paged(gathered: bool = False, sequences: int = 32, length: int = 1024, page: int = 16) -> Step:
    """Attention of the next token of sequences, with 32 heads for 8 heads of keys in pages. If `gathered`, the pages
    are copied to one array for each sequence."""
    heads, shared, width, most = 32, 8, 128, length // page
    queries = torch.randn(sequences, heads, width, dtype=torch.bfloat16).to(DEVICE)
    pages = torch.randn(sequences * most, page, 2 * shared, width, dtype=torch.bfloat16).to(DEVICE)
    table = torch.randperm(sequences * most).reshape(sequences, most).int().to(DEVICE)
    lengths = torch.randint(length // 2, length, (sequences,)).int().to(DEVICE)
    ends, count = torch.arange(sequences + 1).int().to(DEVICE), torch.tensor([sequences]).int().to(DEVICE)

    def step() -> torch.Tensor:
        if not gathered:
            return ragged_paged_attention(queries, pages, lengths, table, ends, count, scale=width**-0.5)
        held = pages[table].flatten(1, 2).unflatten(2, (shared, 2)).transpose(1, 2)
        mask = (torch.arange(length, device=DEVICE) < lengths[:, None])[:, None, None]
        return F.scaled_dot_product_attention(
            queries[:, :, None], held[:, :, :, 0], held[:, :, :, 1], mask, enable_gqa=True
        )

    return step


CASES: dict[str, Case] = {
    "gpt2": Case("GPT-2 of width 768, 2 layers, 512 tokens, AMP, AdamW", lambda: language(Gpt(2)), per_op=True),
    "llama": Case("Llama-like of width 768, 2 layers, 512 tokens, AMP, AdamW", lambda: language(Llama(2))),
    "resnet": Case("a ResNet block, 32 images of 64x32x32, SGD with momentum", images),
    "data-parallel": Case("an MLP of 4 x 1024, 512 rows a chip, SGD", wide, distributed=True),
    "ddp": Case(
        "DDP, 4 residual MLPs 512-1024-512, 4,096 rows a chip, AMP, AdamW",
        lambda: residual(False, 512, 4096),
        distributed=True,
    ),
    "ddp-wide": Case(
        "DDP, 4 residual MLPs 1024-2048-1024, 2,048 rows a chip, AMP, AdamW",
        lambda: residual(False, 1024, 2048),
        distributed=True,
    ),
    "fsdp2": Case(
        "FSDP2, 4 residual MLPs 512-1024-512, 4,096 rows a chip, bfloat16, AdamW",
        lambda: residual(True, 512, 4096),
        distributed=True,
    ),
    "fsdp2-wide": Case(
        "FSDP2, 4 residual MLPs 1024-2048-1024, 2,048 rows a chip, bfloat16, AdamW",
        lambda: residual(True, 1024, 2048),
        distributed=True,
    ),
    "fsdp2-llama": Case(
        "FSDP2, Llama-like of width 768, 2 layers, 2,048 tokens a chip, bfloat16, AdamW",
        sharded_llama,
        distributed=True,
    ),
    "small-tensors": Case("AdamW of 50 vectors of 768", small_tensors),
    "attention": Case("causal attention with its gradients, 4 heads of 128, 8,192 tokens", attention),
    "packed": Case("the same for documents of 1,000 tokens in one row", packed),
    "experts": Case("a mixture of 16 experts 512-1024-512, 2 for each of 4,096 tokens, bfloat16, SGD", experts),
    "paged": Case("attention of 32 sequences' next tokens to 1,024 in pages of 16, 32 heads for 8, bfloat16", paged),
    "paged-gathered": Case("the same, where the pages are copied first", lambda: paged(gathered=True)),
    "experts-dense": Case("the same, where all experts compute all tokens", lambda: experts(dense=True)),
}
