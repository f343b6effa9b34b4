"""`python -m lazytpu.doctor`: what works on this machine, as one report.

`checks/` holds the checks by family, one function each; `check` is how they are written. `runner` has them run in a
child process (`child`, held by `process`), which is started anew when one of them ends it, and `report` writes down
what came of each. The process that reports makes no client of XLA and imports no jax: no check can end it.
"""
