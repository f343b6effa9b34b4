"""The work of the attention kernels, shared by the kernels' own cost estimates and by the models of a step.

The kernels process the scores in blocks of queries and keys, and skip blocks that a mask by position hides entirely.
Each kernel recomputes the scores of its blocks:

    forward       q·k, p·v               the output
    gradient of q q·k, do·v, ds·k
    gradients of k and v  q·k, p·do, do·v, ds·q
"""

from __future__ import annotations

from dataclasses import dataclass

LANES = 128
BLOCKS = (512, 384, 256, 128)
"Sizes of a block in queries and keys, best first; the first that divides the length is used."

NO_SEGMENT = -(1 << 31)
"The segment of a query that sees no key."
UNSEEN = NO_SEGMENT + 1
"The segment of a key that no query sees."

# For each kernel: the number of products over the width of the key, and over the width of the value.
KERNELS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2)}
PASSES = {"default": 1, "high": 3, "highest": 6}
"Passes of the matrix unit over bfloat16 parts of float32 operands, by precision (`jax.lax.Precision` says the same)."
PASSES_OF_KERNEL = "matrix_passes"
"The name of these passes in a kernel's metadata, whose cost estimate counts a product once."


def block(length: int) -> int:
    """The size of a block for a length that is a multiple of 128."""
    return next(size for size in BLOCKS if length % size == 0)


def padded(length: int) -> int:
    """A length padded to whole lanes, as in the kernels."""
    return -(-length // LANES) * LANES


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The work of one kernel: operations of products (a multiply-add counts as two), exponentials, and bytes read and
    written. Blocks of the streamed side count each time they are read. The forward kernel writes its sums to every
    lane; the backward kernels read them, and the sums of output times gradient, once."""

    flops: int
    transcendentals: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AttentionSize:
    """The size of an attention: heads of queries and of keys, numbers of queries and keys, widths of a key and a value,
    bytes per element, and the masks by position."""

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
        """The number of blocks that are computed for one head."""
        queries, keys = padded(self.queries), padded(self.keys)
        of_query, of_key = block(queries), block(keys)
        return sum(
            (not self.causal or key < query + of_query) and (not self.window or key + of_key > query - self.window + 1)
            for query in range(0, queries, of_query)
            for key in range(0, keys, of_key)
        )

    def work(self, kernel: str) -> KernelWork:
        """The work of one of `KERNELS`."""
        queries, keys = padded(self.queries), padded(self.keys)
        of_query, of_key, count = block(queries), block(keys), self.batch * self.heads * self.blocks
        scores = count * of_query * of_key
        of_keys, of_values = KERNELS[kernel]
        width = self.key_width + self.value_width
        sums = 4 * self.batch * self.heads * queries * (LANES if kernel == "fwd" else 2)
        resident, streamed = self.heads * queries, of_key
        if kernel == "dkv":
            resident, streamed = self.key_heads * keys, of_query
        # The outputs are as large as the resident side: q and dq, k and v and their gradients.
        resident_bytes = self.batch * resident * width * self.itemsize * (2 if kernel == "dkv" else 1) + sums
        moved = resident_bytes + count * streamed * width * self.itemsize
        return KernelWork(2 * scores * (of_keys * self.key_width + of_values * self.value_width), scores, moved)
