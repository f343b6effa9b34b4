"""Sparse COO tensors of the device: indices and values are dense tensors, and ops on them are recorded as dense ops.

`register` gives torch the kernels; what has none is refused in words (`refusals`). docs/sparse.md lists both.
"""
