"""The TPU cost report: what a program would cost on a TPU, by the TPU's own compiler, on a machine without one.

`hlo` and `arrays` read what the compiler scheduled, `work` counts what an op computes and moves, `schedule` runs the
ops on a model of the chip, `memory`, `padding` and `collectives` look at one side of the program each, `module` reads
the StableHLO, `advice` says what would be faster; `report` puts them together, and `render` shows the result.
"""
