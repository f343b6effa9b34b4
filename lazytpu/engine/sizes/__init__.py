"""Varying sizes: the buckets of sizes that share a program, and the traces that belong to them.

The expression of a size comes from one of these files:

- an argument of an op, where several traces were recorded: `fitting`;
- an argument of an op, where one trace was: `guesses`, from `marked` dimensions, compiled `graphs` or `relatives`;
- a result of an op: `results`, from torch's meta functions. `derived` walks a trace and asks for each integer;
- an integer of a program: the import at the bound, in `padded`, with guards. `verification` checks it on request.

`skeletons` takes records apart into integers and structure, by the rules for `strides`. `every` finds the `templates`
of a structure. Their buckets have `ranges`, which end at bounds (`buckets`) and where views do (`limits`); `work` tells
which bounds are cheap. `growth`, `chains` and `edges` derive states of the trie, and `counted` compiles counts.
"""
