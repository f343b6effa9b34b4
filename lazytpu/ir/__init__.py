"""The `lazytpu` dialect: functional tensor ops of static shape, at the granularity of StableHLO, on xDSL.

`dialect.py` lists the ops, one file per family defines them with their type rules, `builder.py` builds them and infers
the types, and `text.py` prints and parses modules.
"""
