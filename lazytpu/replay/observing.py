"""One call that is run as usual, and looked at before and after."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from lazytpu.frontend.device.generators import default_generator
from lazytpu.replay.captured import meta_of
from lazytpu.replay.family import Seen, admitting
from lazytpu.replay.numbers import Environment, candidates, clocks, draws, exact, read_states, regimes
from lazytpu.replay.reach import ARGUMENT, GRAD, Key, Reach
from lazytpu.replay.recording import CallRecorder, hypers_of, input_slots, places_by_value, recording
from lazytpu.replay.refusal import Refused, where
from lazytpu.replay.results import Before, Fresh, check_unchanged, leaves_of, value_in, writes
from lazytpu.trace.recorder import Recorder, Trace
from lazytpu.trace.trie import State


class Call:
    """A call of a step function. Make one, `run` it, and ask what was `seen`."""

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        names: set[str],
        hidden: list[torch.optim.Optimizer],
        root: State,
        outer: Recorder,
    ):
        self.function = function
        self.names, self.hidden = names, hidden
        self.arguments: dict[Key, torch.Tensor] = {
            (ARGUMENT, i): leaf
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "tpu" and leaf.layout is torch.strided
        }
        self.objects = [(a, f"argument {i}") for i, a in enumerate(leaves) if not isinstance(a, torch.Tensor)]
        reach = self._reach()
        tensors = {**self.arguments, **reach.tensors}
        self.before = Before(tensors)
        self.layouts = {place: value_in(t.untyped_storage()).layout for place, t in tensors.items()}
        self.metas = {place: meta_of(t) for place, t in tensors.items()}
        self.sizes = {id(container): len(container) for container, _ in reach.whole}
        self.states = read_states(reach)
        self.hypers = {optimizer: hypers_of(optimizer) for optimizer in reach.optimizers}
        self.epochs = {scheduler: scheduler.last_epoch for scheduler in reach.schedulers}
        generators = {default_generator, *reach.generators}
        self.drawn = {g: (g.initial_seed(), g.get_offset()) for g in generators}
        self.recorder = CallRecorder(root, outer, places_by_value(tensors))
        reach.tensors.clear()  # what the call drops, dies in it
        reach.seen.clear()
        self.reach = reach

    def _reach(self) -> Reach:
        hidden = [(each, type(each).__name__) for each in self.hidden]
        return Reach.of(self.names, [(self.function, ""), *self.objects, *hidden])

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], collect: bool) -> Any:
        """Call the function, and run what it recorded, also when it raises; `collect` garbage before that, which could
        keep results alive."""
        try:
            with recording(self.recorder):
                result = self.function(*args, **kwargs)
            if collect:
                gc.collect()
        finally:
            self.recorder.finish()
        return result

    def seen(self, result: Any) -> tuple[Seen, Reach]:
        """What the call did, and what can be reached after it. Raises Refused when no replay could do the same."""
        recorded = self.recorder.recorded
        if recorded.problem is not None:
            raise Refused(recorded.problem)
        trace = recorded.trace
        if trace is None:
            raise Refused("it records nothing on tpu")
        after = self._reach()
        check_unchanged(self.reach, after, self.sizes)
        slots = {id(v): slot for slot, reference in enumerate(trace.values) if (v := reference()) is not None}
        written = writes(self.before, {**self.arguments, **after.tensors}, slots, after.labels)
        leaves, structure = leaves_of(result, self.before, slots)
        inputs = input_slots(trace.state)
        hypers = self._hypers(after)
        used = {w.slot for w in written} | {leaf.slot for leaf in leaves if isinstance(leaf, Fresh)}
        self._check_all_seen(trace, used, inputs)
        ticking = clocks(after, self.states, recorded.steps)
        values, now = Environment([s.optimizer for s in recorded.steps], ticking).evaluate(hypers)
        for clock, states in zip(ticking, now):
            clock.values = states
        drawn = draws(trace.state, trace.numbers, self.drawn)
        seen = Seen(
            state=trace.state,
            pins=frozenset((place, *exact(value)) for place, value in self.reach.simple.items()),
            regimes=regimes(values),
            numbers=trace.numbers,
            explained=candidates(trace.numbers, drawn, recorded.steps, values, recorded.constants),
            inputs=[frozenset(recorded.known.get(slot, ())) for slot in inputs],
            input_slots=inputs,
            live=recorded.live,
            dead=recorded.dead,
            writes=written,
            leaves=leaves,
            structure=structure,
            hypers=hypers,
            steps=recorded.steps,
            clocks=ticking,
            draws=self._draws(),
            schedulers=self._schedulers(),
            layouts=self.layouts,
            slot_layouts={slot: v.layout for slot, reference in enumerate(trace.values) if (v := reference())},
            metas=self.metas,
            containers={**self.reach.places, **after.places},
            ungraded={place[0]: value for place, value in self.reach.simple.items() if place[1] == GRAD},
        )
        return seen, after

    def _check_all_seen(self, trace: Trace, accounted: set[int | None], inputs: list[int]) -> None:
        known = self.recorder.recorded.known
        for index, slot in enumerate(inputs):
            if not known.get(slot):
                record = admitting(trace.state, index)
                raise Refused(
                    f"{where(record)} reads a tensor that is made in the call from data of the host, or that only it "
                    "can see; pass it as an argument, already on tpu"
                )
        left = self.recorder.recorded.live - accounted - set(inputs) - {s for s, places in known.items() if places}
        if left:
            slot = min(left)
            record = next(
                r for r in trace.state.records() if slot in r.out_slots or any(slot in w for w in r.written.values())
            )
            raise Refused(
                f"a result of {where(record)} is still alive after the call, and not where capture can see it: in an "
                "autograd graph that was not run backward, a list, an attribute; detach() what is returned, or use "
                "torch.no_grad()"
            )

    def _hypers(self, after: Reach) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = []
        for each in self.recorder.recorded.steps:
            if each.optimizer not in self.hypers:
                self.hidden.append(each.optimizer)  # the next call will see it
                raise Refused(f"it steps an optimizer that nothing it names leads to ({type(each.optimizer).__name__})")
            if self.hypers.get(each.optimizer) != each.hypers:
                raise Refused("it sets an optimizer's hyperparameters before step(); do so before the call")
            found.append(each.hypers)
        if not self._schedulers():
            for optimizer in after.optimizers:
                if self.hypers.get(optimizer) != hypers_of(optimizer):
                    raise Refused("it sets an optimizer's hyperparameters; do so between the calls")
        return found

    def _schedulers(self) -> list[Any]:
        found: list[Any] = []
        for scheduler, epoch in self.epochs.items():
            if scheduler.last_epoch == epoch + 1:
                found.append(scheduler)
            elif scheduler.last_epoch != epoch:
                raise Refused(f"it steps {type(scheduler).__name__} more than once")
        return found

    def _draws(self) -> dict[Any, int]:
        found: dict[Any, int] = {}
        for generator, (seed, offset) in self.drawn.items():
            if generator.initial_seed() != seed:
                raise Refused("it seeds a generator")
            if generator.get_offset() != offset:
                found[generator] = generator.get_offset() - offset
        return found
