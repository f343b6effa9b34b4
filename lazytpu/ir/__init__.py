"""The `lazytpu` dialect: functional tensor ops of static shape, at the granularity of StableHLO, on xDSL.

`dialect.py` lists the ops; one file per family defines them and their type inference; `builder.py` builds them with
inferred types; `text.py` prints and parses modules; `universe.py` provides the dialect and its passes to `xdsl-opt`.
"""
