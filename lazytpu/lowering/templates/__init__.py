"""JAX functions for ops that are long to write in StableHLO: linear algebra, FFT, special functions.

`registry.py` keeps them by name; each other file registers those of one family. A template is used by
`Builder.template(name, operands, results, **params)`.
"""
