"""`python -m lazytpu.doctor`: a report on the features that work on this machine.

`checks/` holds the checks by family, one function each; `check` explains how to write one. `runner` runs them in a
child process (`child`, controlled by `process`), which is restarted when a check kills it, and `report` writes the
results. The reporting process creates no XLA client and does not import jax, so no check can crash it.
"""
