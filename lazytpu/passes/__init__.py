"""Passes over modules of the `lazytpu` dialect. Each pass has a file of its own name; `phases.py` has their order.

`register` and `registered` are public: they add a pass from another package to the pipeline (docs/writing-a-pass.md).
"""

from lazytpu.passes.registry import register, registered, unregister

__all__ = ["register", "registered", "unregister"]
