"""Conformance: every entry of torch's op database on "tpu" against the CPU.

    python -m tools.conformance sweep     run what is not yet in the results file, on two processes
    python -m tools.conformance show      what failed
    python -m tools.conformance table     docs/conformance.md and docs/conformance.json from the results

`entries` names the ops and draws their samples, `samples` places them on a device, `checks` and `errors` say what has
to hold, `trial` runs the checks of an entry together, `sweep` deals entries to worker processes, `rows` is what they
answer, `gaps` keeps the reasons of what is missing, and `report` and `page` write the table.
"""
