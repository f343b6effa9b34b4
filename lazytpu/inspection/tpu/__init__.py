"""The TPU cost report: what a program would cost on a TPU, by the TPU's own compiler, on a machine without one.

`hlo` and `arrays` read what the compiler scheduled, `work` counts what an op computes and moves, and `schedule` runs
the ops on a model of the chip. `memory`, `padding` and `collectives` each examine one aspect of the program, `module`
reads the StableHLO, and `advice` says what would be faster. `report` combines them; `render` shows the result.
"""
