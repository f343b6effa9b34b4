"""Templates: JAX functions for ops that would be long in StableHLO, such as linear algebra, FFT and special functions.

`registry.py` holds them by name; each other file registers those of one family. `Builder.template(name, operands,
results, **params)` builds a call.
"""
