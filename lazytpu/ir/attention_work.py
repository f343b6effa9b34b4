"""What attention takes to compute by the kernels: one place for the kernels' own cost estimates and for models of a
step.

The kernels go over the scores in blocks of queries and keys, and skip blocks that a mask by position hides altogether.
Each computes the scores of its blocks again:

    forward       q·k, p·v               the output
    gradient of q q·k, do·v, ds·k
    gradients of k and v  q·k, p·do, do·v, ds·q
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = 128
BLOCKS = (512, 384, 256, 128)
"Sizes of a block in queries and keys, best first: the largest that divides the length is taken."

# Of each kernel: how many products are as wide as the key, and how many as the value.
KERNELS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2)}
PASSES = {"default": 1, "high": 3, "highest": 6}
"Passes of the matrix unit over bfloat16 parts of float32 operands, by precision (`jax.lax.Precision` says the same)."
PASSES_OF_KERNEL = "matrix_passes"
"What a kernel calls them in its metadata: its cost estimate counts a product once."


def block(length: int) -> int:
    """The size of a block for a length, a multiple of 128."""
    return next(size for size in BLOCKS if length % size == 0)


def padded(length: int) -> int:
    """A length in whole lanes, as kernels compute it."""
    return -(-length // LANES) * LANES


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Of one kernel: operations of products (a multiplication and its addition are two), exponentials, and bytes read
    and written, the blocks of the other side as often as they are read. The forward kernel writes its sums to every
    lane; the others read those, and the sums of the output's products with its gradient, once."""

    flops: int
    transcendentals: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AttentionSize:
    """An attention for the kernels: `heads` for `key_heads`, `queries` of `keys`, widths of a key and a value, bytes of
    an element, and what hides scores by position."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    key_width: int
    value_width: int
    itemsize: int
    causal: bool = False
    window: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of one head that are computed."""
        queries, keys = padded(self.queries), padded(self.keys)
        of_query, of_key = block(queries), block(keys)
        return sum(
            (not self.causal or key < query + of_query) and (not self.window or key + of_key > query - self.window + 1)
            for query in range(0, queries, of_query)
            for key in range(0, keys, of_key)
        )

    def work(self, kernel: str) -> KernelWork:
        """Of one of `KERNELS`."""
        queries, keys = padded(self.queries), padded(self.keys)
        of_query, of_key, count = block(queries), block(keys), self.batch * self.heads * self.blocks
        scores = count * of_query * of_key
        of_keys, of_values = KERNELS[kernel]
        width = self.key_width + self.value_width
        sums = 4 * self.batch * self.heads * queries * (LANES if kernel == "fwd" else 2)
        kept, streamed = self.heads * queries, of_key
        if kernel == "dkv":
            kept, streamed = self.key_heads * keys, of_query
        # What it makes is as large as what it keeps of one side: q and dq, k and v and their gradients.
        kept_bytes = self.batch * kept * width * self.itemsize * (2 if kernel == "dkv" else 1) + sums
        moved = kept_bytes + count * streamed * width * self.itemsize
        return KernelWork(2 * scores * (of_keys * self.key_width + of_values * self.value_width), scores, moved)
