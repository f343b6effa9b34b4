"""Size expressions that come from compiled graphs (torch.compile), which know their integers symbolically.

The symbols of each graph are sizes of its arguments. If one graph passes a tensor to the next, that tensor's sizes are
known in both. So the second graph's symbols are expressions of the first graph's.
"""

from __future__ import annotations

from lazytpu.engine.sizes.derived import fit_guessed
from lazytpu.engine.sizes.fitting import NAMES, Varying
from lazytpu.engine.sizes.guesses import Guesses
from lazytpu.engine.sizes.results import Results
from lazytpu.engine.sizes.skeletons import Integers, trace_apart, with_sizes
from lazytpu.ir.forms import Form, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL, Size, number_at_bound
from lazytpu.ports import Inference
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record, State


def known_of(state: State, inference: Inference) -> Varying | None:
    """Return the size expressions of the trace that ends at `state`, or None if no compiled graph knows them."""
    if not any(edge.sizes.symbolic for edge in state.path()):
        return None
    # Name the symbols of each graph apart, and take its integers.
    records, in_graph, sources = list[Record](), list[bool](), dict[str, tuple[int, int]]()
    layouts, results = Slots(state.records()).layouts, Results(inference)
    for edge in state.path():
        expressed, symbols = edge.sizes.symbolic or (edge.recorded, {})
        names = dict[str, Form]()
        for name, (slot, dim) in symbols.items():
            new = f"g{len(sources)}"
            sources[new], names[name] = (slot, dim), symbol(new)
            results.begin(new, MIN_SYMBOL, layouts[slot].shape[dim])

        def renamed(size: Size, names: dict[str, Form] = names) -> Size:
            return results.derivation.size(size.form.where(names))

        records += [with_sizes(record, renamed) for record in expressed]
        in_graph += [edge.sizes.symbolic is not None] * len(expressed)
    trace_apart(records, into := Integers([], []))
    forms, results_at = [*map(results.derivation.form_of, into.values)], frozenset(into.made)
    # Sizes of the trace's inputs are its symbols. The others follow from results of the trace.
    inputs = {(slot, dim): at for at, slot, dim in into.inputs if (slot, dim) in sources.values()}
    if len(inputs) > len(NAMES):
        return None
    by_place = dict(zip(inputs, NAMES, strict=False))
    resolved = {name: symbol(by_place.get(place, name)) for name, place in sources.items()}
    expressions = {at: forms[at] for at, _, _ in into.inputs}
    for symbolic, start, end in zip(in_graph, [0, *into.ends], into.ends, strict=False):
        positions = [at for at in range(start, end) if symbolic and (forms[at].symbols or at not in results_at)]
        expressions |= {at: forms[at] for at in positions}
    expressions = {at: size.where(resolved) for at, size in expressions.items()}
    symbols_at = {name: inputs[place] for place, name in by_place.items()}
    expressions |= {at: symbol(name) for name, at in symbols_at.items()}
    into.values = [number_at_bound(number) for number in into.values]
    return fit_guessed(Guesses(into, symbols_at, expressions, sources), state.records(), inference) if inputs else None
