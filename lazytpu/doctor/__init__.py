"""`python -m lazytpu.doctor`: what works on this machine, as one report.

`checks/` holds the checks by family, one function each; `check` says how to write one. `runner` runs them in a child
process (`child`, controlled by `process`), which is restarted when a check kills it, and `report` writes the results.
The reporting process creates no XLA client and does not import jax, so no check can take it down.
"""
