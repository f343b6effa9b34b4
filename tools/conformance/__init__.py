"""Conformance: every entry of torch's op database on "tpu" against the CPU.

    python -m tools.conformance sweep     run the entries that are missing in the results file, on two processes
    python -m tools.conformance show      list the failures
    python -m tools.conformance compile   compile the entries that are missing in the results of a chip, for that chip
    python -m tools.conformance padding   run each op at three sizes, with one program for all of them
    python -m tools.conformance large     run each op at sizes of work, and compare errors against float64
    python -m tools.conformance table     docs/conformance.md and docs/conformance.json from the results

`entries` names the ops and draws their samples, `samples` places them on a device, `checks` and `errors` define the
checks, `trial` runs the checks of an entry together, `sweep` distributes entries to worker processes, `rows` is the
format of their answers, `gaps` keeps the reasons of known failures, and `report` and `page` write the table.
`compiling` compiles the programs of an entry for a chip that is not present, and `column` is its part of the table;
`padding` runs an entry at varying sizes, and `sizes` is its part. `large` runs it at realistic sizes, and `large_table`
writes a separate page.
"""
