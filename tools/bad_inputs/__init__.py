"""Bad inputs: random invalid calls, on "tpu" against the CPU.

    python -m tools.bad_inputs -n 3000     as many calls, in child processes with bounded memory and time

`cases` corrupts samples of torch's op database: a shape, a dtype, a size, an index, a value, the tensor of `out=`.
`worker` runs them on both devices and reports their errors. The main module distributes them, judges the answers and
lists the differences. A child that dies or hangs on "tpu" is the worst answer.
"""
