"""Sparse COO tensors: the same results as on the CPU, and helpful errors for unsupported ops."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lazytpu

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def sparse(device: str, seed: int, *, coalesced: bool, hybrid: bool) -> Tensor:
    """Return (4, 5) or (4, 5, 2), with 6 elements, some at the same index."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, 4, (2, 6), generator=generator)
    indices[:, 1] = indices[:, 0]
    dense = (2,) if hybrid else ()
    tensor = torch.sparse_coo_tensor(indices, torch.randn(6, *dense, generator=generator), (4, 5, *dense))
    return (tensor.coalesce() if coalesced else tensor).to(device)


def host(value: Any) -> Any:
    """Return results on the CPU; sparse ones in dense form."""
    if isinstance(value, list | tuple):
        return [host(v) for v in value]
    if isinstance(value, Tensor):
        return ("sparse", value.cpu().to_dense()) if value.is_sparse else value.detach().cpu()
    return value


def outcome(case: Callable[[str], Any], device: str) -> Any:
    try:
        return host(case(device))
    except (RuntimeError, IndexError) as error:
        return type(error)


def same(got: Any, want: Any) -> None:
    if isinstance(want, list | tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    elif isinstance(want, Tensor):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    else:
        assert got == want


def ramp(x: Tensor) -> Tensor:
    return torch.arange(1.0, 1 + x.numel(), device=x.device).reshape(x.shape)


def columns(x: Tensor) -> Tensor:
    return torch.arange(15.0, device=x.device).reshape(5, 3)


def parts(x: Tensor, y: Tensor) -> list[Any]:
    coalesced = x.coalesce()
    return [
        coalesced.indices(),
        coalesced.values(),
        coalesced._nnz(),
        x.sparse_dim(),
        x.dense_dim(),
        x.is_coalesced(),
        repr(x)[:20],
    ]


ON_TWO: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "parts": parts,
    "to_dense": lambda x, y: [x.to_dense(), x.clone(), x.detach()],
    "sum and difference": lambda x, y: [x + y, x - y, torch.add(x, y, alpha=2.5), (x + y).is_coalesced()],
    "in place": lambda x, y: [x.add_(y), x.mul_(2), x.sub_(y), x.div_(4), x.neg_(), x],
    "onto dense": lambda x, y: [ramp(x) + x, ramp(x).add_(x, alpha=-0.5), ramp(x) - x, ramp(x).mul_(x)],
    "times a number": lambda x, y: [x * 2, 2 * x, x / 2, x * torch.tensor(3.0, device=x.device), -x, x // 2],
    "times a tensor": lambda x, y: [x * y, x * ramp(x)],
    "elementwise": lambda x, y: [x.abs(), x.sin(), x.relu(), x.sign(), x**3, x.isnan(), x.nan_to_num(), x.sqrt()],
    "out=": lambda x, y: [torch.sin(x, out=y), y, torch.add(x, x, out=torch.zeros_like(x))],
    "sums": lambda x, y: [x.sum(), torch.sparse.sum(x), torch.sparse.sum(x, 0), torch.sparse.sum(x, [0, 1]), x.sum(-1)],
    "norms": lambda x, y: [x.norm(), torch.norm(x, 1), x.any()],
    "dims": lambda x, y: [x.transpose(0, 1), x.unsqueeze(0), torch.zeros_like(x), x.zero_()],
    "picked": lambda x, y: [x.index_select(0, torch.tensor([2, 0, 2], device=x.device)), x[1], x.select(1, 2), x[1, 2]],
    "narrowed": lambda x, y: torch.narrow_copy(x, 1, 1, 3),
    "joined": lambda x, y: [torch.cat([x, y]), torch.cat([x, y], 1), torch.stack([x, y])],
    "softmax": lambda x, y: [torch.sparse.softmax(x, 0), torch.sparse.log_softmax(x, 1)],
    "masked": lambda x, y: [ramp(x).sparse_mask(x.coalesce()), x.sparse_mask(y.coalesce())],
    "moved": lambda x, y: [x.double(), x.to(x.device, torch.float16), x.copy_(y), copy.deepcopy(x)],
    "refused alike": lambda x, y: x + 1,
    "shapes that differ": lambda x, y: x + x.transpose(0, 1),
    "out of range": lambda x, y: x.select(0, 7),
}


WITH_DENSE_DIMS = ("parts", "sum and difference", "onto dense", "times a tensor", "sums", "picked", "softmax", "masked")


@pytest.mark.parametrize("name", ON_TWO)
def test_an_op_equals_the_cpus(name: str) -> None:
    def case(device: str) -> Any:
        return ON_TWO[name](*(sparse(device, seed, coalesced=False, hybrid=False) for seed in (0, 1)))

    same(outcome(case, "tpu"), outcome(case, "cpu"))


@pytest.mark.parametrize("name", WITH_DENSE_DIMS)
def test_dense_dims(name: str) -> None:
    def case(device: str) -> Any:
        return ON_TWO[name](*(sparse(device, seed, coalesced=True, hybrid=True) for seed in (0, 1)))

    same(outcome(case, "tpu"), outcome(case, "cpu"))


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "by dense": lambda x, y: [
        x @ columns(x),
        torch.sparse.mm(x, columns(x)),
        columns(x).t() @ x.t(),
        x @ columns(x)[:, 0],
    ],
    "added": lambda x, y: [
        torch.addmm(columns(x)[:4], x, columns(x), beta=0.5, alpha=2),
        torch.sparse.addmm(columns(x)[:4], x, columns(x)),
    ],
    "by sparse": lambda x, y: [x @ y.t(), torch.sparse.mm(x, y.t()).is_coalesced()],
    "out=": lambda x, y: torch.mm(x, columns(x), out=torch.empty(0, device=x.device)),
    "that do not fit": lambda x, y: x @ y,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    def case(device: str) -> Any:
        return PRODUCTS[name](*(sparse(device, seed, coalesced=False, hybrid=False) for seed in (0, 1)))

    same(outcome(case, "tpu"), outcome(case, "cpu"))


def batched(d: str) -> Tensor:
    indices = torch.tensor([[0, 0, 1], [1, 2, 0], [0, 1, 1]])
    x = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2, 3]), (2, 3, 2)).to(d)
    return torch.bmm(x, torch.arange(16.0, device=d).reshape(2, 2, 4))


def of_dense(d: str) -> list[Any]:
    w = torch.tensor([[0.0, 1, 0], [2, 0, 3]], device=d)
    volume = torch.zeros(2, 3, 2, device=d)
    volume[1, 2, 0] = 5
    scalars = [torch.tensor(v, device=d).to_sparse() for v in (3.0, 0.0)]
    return [
        w.to_sparse(),
        w.to_sparse(1),
        volume.to_sparse(2),
        (w > 1).to_sparse(),
        w.to_sparse().is_coalesced(),
        scalars,
    ]


def constructed(d: str) -> list[Any]:
    return [
        torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 1]]), torch.tensor([1.0, 2]), (3, 3), device=d),
        torch.empty(2, 2, layout=torch.sparse_coo, device=d),
        torch.zeros(2, 2, layout=torch.sparse_coo, device=d),
        torch.sparse_coo_tensor(torch.tensor([[0, 1, 1]]), torch.tensor([True, False, True]), device=d).coalesce(),
    ]


def embedded(d: str) -> list[Any]:
    table = nn.Embedding(10, 3, sparse=True, padding_idx=2, _weight=torch.arange(30.0).reshape(10, 3)).to(d)
    for _ in range(2):
        table(torch.tensor([1, 4, 4, 2], device=d)).square().sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    results = [gradient.is_sparse, gradient.coalesce(), gradient.to_dense()]
    table.zero_grad(set_to_none=False)
    return [*results, table.weight.grad]


def in_bags(d: str) -> list[Any]:
    results: list[Any] = []
    for mode in ("sum", "mean"):
        table = nn.EmbeddingBag(10, 3, sparse=True, mode=mode, _weight=torch.arange(30.0).reshape(10, 3)).to(d)
        table(torch.tensor([1, 4, 4, 2], device=d), torch.tensor([0, 3], device=d)).square().sum().backward()
        results.append(table.weight.grad)
    return results


def gathered(d: str) -> Any:
    x = torch.arange(6.0, device=d).reshape(2, 3).requires_grad_()
    torch.gather(x, 0, torch.zeros(1, 3, dtype=torch.long, device=d), sparse_grad=True).sum().backward()
    return x.grad


def through_values(d: str) -> list[Any]:
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]], device=d)
    v = torch.tensor([1.0, 2, 3], device=d, requires_grad=True)
    w = torch.arange(9.0, device=d).reshape(3, 3).requires_grad_()
    losses: list[Callable[[Tensor], Tensor]] = [
        lambda x: torch.sparse.mm(x, w),
        lambda x: torch.sparse.sum(x, 0).to_dense(),
        lambda x: torch.sparse.softmax(x, 1).to_dense(),
        lambda x: x.values(),
        lambda x: (x * 2).neg().to_dense() + x,
    ]
    tensor = torch.sparse_coo_tensor(indices, v, (2, 3))
    results = [torch.autograd.grad(tensor.to_dense().square().sum(), v)]
    for loss in losses:
        x = torch.sparse_coo_tensor(indices, v, (2, 3)).coalesce()
        results.append(torch.autograd.grad(loss(x).square().sum(), [v, w], allow_unused=True))
    return results


def of_leaves(d: str) -> list[Any]:
    s = torch.eye(3, device=d).to_sparse().requires_grad_()
    w = torch.arange(9.0, device=d).reshape(3, 3).requires_grad_()
    torch.sparse.mm(s, w).square().sum().backward()
    (s * 2).to_dense().sum().backward()
    (w * 2).to_sparse().to_dense().square().sum().backward()
    return [s.grad, w.grad]


def without_elements(d: str) -> list[Any]:
    shapes = [(0,), (0, 3), (3, 0), (2, 0, 3), (2, 3, 0)]
    return [[x.to_sparse(), x.to_sparse(1)] for x in (torch.ones(shape, device=d) for shape in shapes)]


def summed(d: str) -> list[Any]:
    tensors = [torch.arange(6.0, device=d).reshape(2, 3).to_sparse(n) for n in (1, 2)]
    tensors.append(torch.tensor([0, 2, 3], device=d).to_sparse())
    results: list[Any] = []
    for x, dim, keepdim in itertools.product(tensors, [None, (), 0, 1, -1, (0, 1), 2], [False, True]):
        results.append(outcome(lambda d, x=x, dim=dim, keepdim=keepdim: x.sum(dim, keepdim=keepdim), d))
    return results


def saved(d: str) -> list[Any]:
    x = sparse(d, 0, coalesced=True, hybrid=False)
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    y = torch.load(file)
    return [y, y.device.type == d]


@pytest.mark.parametrize(
    "case",
    [
        batched,
        of_dense,
        constructed,
        embedded,
        in_bags,
        gathered,
        through_values,
        of_leaves,
        without_elements,
        summed,
        saved,
    ],
    ids=lambda case: case.__name__,
)
def test_a_use_equals_the_cpus(case: Callable[[str], Any]) -> None:
    same(host(case("tpu")), host(case("cpu")))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_on_sparse_gradients(name: str) -> None:
    def weights(device: str) -> Tensor:
        table = nn.Embedding(10, 3, sparse=True, _weight=torch.arange(30.0).reshape(10, 3)).to(device)
        optimizer = OPTIMIZERS[name](table.parameters())
        for step in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 4, 4, step], device=device)).square().sum().backward()
            optimizer.step()
        return table.weight

    same(host(weights("tpu")), host(weights("cpu")))


def test_clipping_counts_each_index_once() -> None:
    table = nn.Embedding(10, 3, sparse=True, device="tpu")
    nn.init.ones_(table.weight)
    table(torch.tensor([1, 4, 4], device="tpu")).sum().backward()
    assert nn.utils.clip_grad_norm_(table.parameters(), 1.0).item() == pytest.approx(15**0.5)
    assert table.weight.grad is not None
    assert table.weight.grad.to_dense().norm().item() == pytest.approx(1.0, rel=1e-4)


def test_adding_to_dense_needs_no_cut() -> None:
    weight = torch.zeros(10, 3, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    index = torch.tensor([1, 4, 4], device="tpu")
    lazytpu.sync()
    before = lazytpu.metrics()["steps"]
    nn.functional.embedding(index, weight, sparse=True).square().sum().backward()
    optimizer.step()
    assert lazytpu.metrics()["steps"] == before


@pytest.mark.parametrize(
    "dtypes", [(torch.int8, torch.uint8), (torch.float32, torch.uint8), (torch.uint8, torch.int64)], ids=str
)
@pytest.mark.parametrize("alpha", [1, -2])
def test_sums_of_two_dtypes_are_computed_in_their_common_dtype(dtypes: tuple[torch.dtype, ...], alpha: int) -> None:
    def case(device: str) -> list[Tensor]:
        one = torch.tensor([0, 5, 7, 0, 9], dtype=dtypes[0]).to_sparse().to(device)
        other = torch.tensor([3, 8, 0, 0, 2], dtype=dtypes[1]).to_sparse().to(device)
        sums = [torch.add(one, other, alpha=alpha), torch.sub(one, other, alpha=alpha)]
        return [total.to_dense() for total in sums]

    for got, want in zip(host(case("tpu")), case("cpu"), strict=True):
        assert torch.equal(got, want)
        assert got.dtype == want.dtype


def eye() -> Tensor:
    return torch.eye(2, device="tpu").to_sparse()


REFUSED: dict[str, Callable[[], Any]] = {
    "csr": lambda: torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2), device="tpu"),
    "csr of parts": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]).to("tpu"), torch.tensor([0, 1]).to("tpu"), torch.ones(2).to("tpu"), (2, 2)
    ),
    "bsr": lambda: torch.sparse_bsr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1, 2, 2), device="tpu"),
    "to csr": lambda: torch.eye(2, device="tpu").to_sparse_csr(),
    "to bsc": lambda: torch.eye(2, device="tpu").to_sparse_bsc((2, 2)),
    "to csr by layout": lambda: torch.eye(2, device="tpu").to_sparse(layout=torch.sparse_csr),
    "sparse to csr": lambda: eye().to_sparse_csr(),
    "csr moved": lambda: torch.eye(2).to_sparse_csr().to("tpu"),
    "empty csr": lambda: torch.empty(2, 2, layout=torch.sparse_csr, device="tpu"),
    "exp": lambda: eye().exp(),
    "comparison": lambda: eye() == eye(),
    "hspmm": lambda: torch.hspmm(eye(), torch.ones(2, 2, device="tpu")),
    "broadcast product": lambda: eye() * torch.ones(3, 2, 2, device="tpu"),
    "norm of a dim": lambda: torch.norm(eye(), dim=0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_ops_raise_with_a_dense_alternative(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"not supported on 'tpu'.*\.to_dense\(\)"):
        REFUSED[name]()


FORMATS = [None, torch.preserve_format, torch.contiguous_format, torch.channels_last, torch.channels_last_3d]
LIKE = {
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
    "empty_like, dense": lambda x, **format: torch.empty_like(x, layout=torch.strided, **format),
    "zeros_like, dense": lambda x, **format: torch.zeros_like(x, layout=torch.strided, **format),
    "clone": lambda x, **format: x.clone(**format),
    "to": lambda x, **format: x.to(torch.float64, **format),
    "contiguous": lambda x, **format: x.contiguous(**format),
}


def kind_or_error(function: Callable[..., Tensor], x: Tensor, **format: Any) -> Any:
    try:
        result = function(x, **format)
        return result.layout, result.shape, result.dtype, result.is_sparse or result.stride()
    except RuntimeError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", LIKE)
def test_memory_formats_are_refused_as_on_the_cpu(name: str) -> None:
    for format in FORMATS:
        given = {} if format is None else {"memory_format": format}
        x = torch.ones(2, 3, 2, 2).to_sparse()
        assert kind_or_error(LIKE[name], x.to("tpu"), **given) == kind_or_error(LIKE[name], x, **given)


def test_a_dense_tensor_has_no_sparse_likeness() -> None:
    x = torch.ones(2, 3, device="tpu")
    for function in (torch.empty_like, torch.zeros_like, torch.rand_like):
        with pytest.raises(NotImplementedError, match="sparse_coo"):
            function(x, layout=torch.sparse_coo)
        with pytest.raises(RuntimeError, match="memory format option is only supported by strided tensors"):
            function(x, layout=torch.sparse_coo, memory_format=torch.contiguous_format)
