"""Passes over modules of the `lazytpu` dialect: one named pass per file, the file named as the pass; `phases.py` says
the order in which a module goes through them.

`register` and `registered` are public: they are how a pass from elsewhere becomes part of the pipeline
(docs/writing-a-pass.md).
"""

from lazytpu.passes.registry import register, registered, unregister

__all__ = ["register", "registered", "unregister"]
