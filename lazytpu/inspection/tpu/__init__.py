"""The TPU cost report: the cost of a program on a TPU, by the TPU's own compiler, on a machine without a TPU.

- `hlo` and `arrays` read the scheduled module of the compiler. `work` counts the operations and bytes of an op, and
  `schedule` runs the ops on a model of the chip.
- `memory`, `padding` and `collectives` each examine one aspect of the program.
- `module` reads the StableHLO, and `advice` suggests improvements.
- `report` combines them; `render` formats the result.
"""
