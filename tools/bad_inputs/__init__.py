"""Bad inputs: random calls that are wrong somewhere, on "tpu" against the CPU.

    python -m tools.bad_inputs -n 3000     as many calls, in child processes with bounded memory and time

`cases` spoils samples of torch's op database: a shape, a dtype, a size, an index, a value, the tensor of `out=`.
`worker` runs them on both devices and says how they were refused, and the main module deals them out, judges the
answers and lists what differs. A child that dies or hangs on "tpu" is the worst of answers.
"""
