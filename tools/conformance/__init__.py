"""Conformance: every entry of torch's op database on "tpu" against the CPU.

    python -m tools.conformance sweep     run what is not yet in the results file, on two processes
    python -m tools.conformance show      what failed
    python -m tools.conformance compile   compile what the results of a chip do not have yet, for that chip
    python -m tools.conformance padding   run each op at three sizes, with one program for all of them
    python -m tools.conformance large     run each op at sizes of work, and compare errors against float64
    python -m tools.conformance table     docs/conformance.md and docs/conformance.json from the results

`entries` names the ops and draws their samples, `samples` places them on a device, `checks` and `errors` say what has
to hold, `trial` runs the checks of an entry together, `sweep` deals entries to worker processes, `rows` is what they
answer, `gaps` keeps the reasons of what is missing, and `report` and `page` write the table. `compiling` compiles the
programs of an entry for a chip that is not here, and `column` is its part of the table; `padding` runs an entry at
sizes that vary, and `sizes` is its part. `large` runs it at sizes of work, and `large_table` writes a page of its own.
"""
