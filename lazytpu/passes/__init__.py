"""Passes over modules of the `lazytpu` dialect: one named pass per file, the file named as the pass; `pipeline.py` says
the order in which a module goes through them."""
