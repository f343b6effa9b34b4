"""A captured call: guards, numbers, one run of one program, and what the call would have left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter, is_, itemgetter
from sys import getrefcount
from typing import Any

import torch
from torch.autograd.graph import increment_version

from lazytpu.engine.compiled import Compiled
from lazytpu.engine.replays import Replay
from lazytpu.frontend.device.generators import TpuGenerator
from lazytpu.frontend.torch_private import pytree
from lazytpu.replay.family import Family, Seen, difference, same
from lazytpu.replay.flat import Flat
from lazytpu.replay.guards import Guards
from lazytpu.replay.numbers import Environment, Plan, exact, number_records, regimes
from lazytpu.replay.reach import ARGUMENT, GRAD, Key, Reach
from lazytpu.replay.recording import hypers_of
from lazytpu.replay.refusal import where
from lazytpu.replay.results import Fresh, Kept, Same, Write, view
from lazytpu.runtime.laid_out import arguments, replaced
from lazytpu.runtime.resident import Pack
from lazytpu.trace.value import EMPTY, Layout, Value, resident

_storage = torch.Tensor.untyped_storage
_value = attrgetter("_value")
_buffer = attrgetter("buffer")
_layout = attrgetter("layout")
_pins = attrgetter("pins")
_error = attrgetter("error")


def _picker(indices: Sequence[int]) -> Any:
    """The entries of a list at these indices, as a sequence."""
    if len(indices) == 1:
        return lambda found, i=indices[0]: (found[i],)
    return itemgetter(*indices) if indices else lambda found: ()


class Captured:
    """One variant of a step function. `attempt` replays a call, or says why it has to be recorded."""

    def __init__(self, family: Family, seen: Seen, compiled: Compiled, replay: Replay, reach: Reach):
        self.family = family
        self.replay = replay
        self.replays = 0
        self.guards = Guards(reach, {w.place for w in seen.writes if w.fresh is not None})
        self.structure = seen.structure
        self.leaves = seen.leaves
        self._host(family, seen)
        self._holders(family, seen, compiled, reach)
        self._results(family, seen, compiled)

    # -- what is worked out once

    def _host(self, family: Family, seen: Seen) -> None:
        self.environment = Environment([step.optimizer for step in seen.steps], seen.clocks)
        self.plan = Plan(seen.numbers, family.explained, self.environment)
        self.regimes = seen.regimes
        self.hypers = seen.hypers
        self.varied = family.varied
        self.draws: dict[TpuGenerator, int] = seen.draws
        self.schedulers = seen.schedulers

    def _holders(self, family: Family, seen: Seen, compiled: Compiled, reach: Reach) -> None:
        """The tensors whose storages the call reads and writes: those that Python holds for good first."""
        places: dict[Key, None] = {}
        for i in compiled.reads:
            places.update(dict.fromkeys(family.inputs[i]))
        places.update(dict.fromkeys(w.place for w in seen.writes if w.fresh is None and w.slot is not None))
        places.update(dict.fromkeys(leaf.place for leaf in seen.leaves if isinstance(leaf, Same)))
        used = {w.slot for w in seen.writes} | {leaf.slot for leaf in seen.leaves if isinstance(leaf, Fresh)}
        for sources, slot in zip(family.inputs, seen.input_slots):
            if slot in used:  # passed on as it is, whether the program reads it or not
                places.update(dict.fromkeys(sources))
        assigned = {w.place for w in seen.writes if w.fresh is not None or w.slot is None}
        moving = [p for p in places if p[0] == ARGUMENT or p[1] == GRAD or p in assigned]
        fixed = [p for p in places if p not in set(moving)]
        self.fixed = [reach.tensors[p] for p in fixed]
        self.fixed_storages: list[Any] = list(map(_storage, self.fixed))
        self.moving = [(seen.containers[p] if p[0] != ARGUMENT else (None, p[1])) for p in moving]
        self.index = {place: i for i, place in enumerate((*fixed, *moving))}
        self.layouts: list[Layout] = [seen.layouts[p] for p in self.index]
        self.metas = [seen.metas[p] for p in moving]
        self.targets = {w.place: seen.containers[w.place] for w in seen.writes if w.place in assigned}
        graded = {id(t): t for p, t in reach.tensors.items() if p[1] != GRAD and t.is_leaf and t.requires_grad}
        self.graded = list(graded.values())
        self.ungraded = [seen.ungraded.get(id(t), True) for t in self.graded]
        self.alike = [  # places that hold one value
            [self.index[p] for p in family.inputs[i]] for i in compiled.reads if len(family.inputs[i]) > 1
        ]
        first = {i: self.index[min(family.inputs[i], key=self.index.__getitem__)] for i in compiled.reads}
        self.order = _picker([first[i] for i in compiled.inputs])
        self.flat_holders = [[first[i] for i in each.inputs] for each in compiled.resident]

    def _results(self, family: Family, seen: Seen, compiled: Compiled) -> None:
        """Storages that are the only holders of their value keep it, and its buffer gets the new array."""
        position = {slot: i for i, slot in enumerate(compiled.live)}
        position.update((slot, place.index) for slot, place in compiled.places.items())
        uses = Counter(w.slot for w in seen.writes)
        uses.update(leaf.slot for leaf in seen.leaves if isinstance(leaf, Fresh))
        input_of = {slot: i for i, slot in enumerate(seen.input_slots)}
        passed_on = {p for slot in uses if slot in input_of for p in family.inputs[input_of[slot]]}
        shared = {i for group in self.alike for i in group}
        self.kept: list[int] = []
        flat: dict[int, int] = {}  # of slots in flat results, the place that keeps the value
        sources: list[int] = []
        self.moves: list[tuple[Write, int | None]] = []
        for write in seen.writes:
            at = self.index.get(write.place)
            alone = uses[write.slot] == 1 and write.slot in position and write.place not in passed_on
            if write.fresh is None and write.slot is not None and alone and at not in shared:
                assert at is not None
                if write.slot in compiled.places and compiled.places[write.slot].pack is not None:
                    flat[write.slot] = at
                else:
                    self.kept.append(at)
                    sources.append(position[write.slot])
            else:
                self.moves.append((write, at))
        layouts = compiled.program.layouts
        orders = {source: layouts and layouts.results[source] for source in sources}
        plain = [(at, source) for at, source in zip(self.kept, sources) if orders[source] is None]
        self.pick_kept, self.pick_sources = _picker([at for at, _ in plain]), _picker([source for _, source in plain])
        self.laid = [(at, source, each) for at, source in zip(self.kept, sources) if (each := orders[source])]
        self.flat = Flat(compiled, self.flat_holders, [[flat.get(s) for s in each.slots] for each in compiled.resident])
        self.slot_layouts = seen.slot_layouts
        self.passed = {
            slot: self.index[next(iter(family.inputs[input_of[slot]]))]
            for slot in uses
            if slot is not None and slot in input_of and slot not in position
        }
        given = [self.index[next(iter(family.inputs[i]))] for i in compiled.reads if i in compiled.donated]
        kept = {*self.kept, *flat.values()}
        self.given = _picker(given)
        self.released = [i for i in given if i not in kept]
        holders = {i: len(group) for group in self.alike for i in group}
        self.watched = [*self.kept, *flat.values(), *self.released]
        self.pick_watched = _picker(self.watched)
        self.references = [_ALONE + 2 * (holders.get(i, 1) - 1) for i in self.watched]
        self.written = [i for i in self.index.values() if i in {self.index.get(w.place) for w in seen.writes}]
        # versions matter to autograd, which saves no states of optimizers
        states = {id(t) for o in self.environment.steps for d in o.state.values() for t in d.values()}
        self.pick_written = _picker([i - len(self.fixed) for i in self.written if i >= len(self.fixed)])
        self.bumped = [self.fixed[i] for i in self.written if i < len(self.fixed) and id(self.fixed[i]) not in states]

    # -- a call

    def attempt(self, leaves: list[Any]) -> tuple[bool, Any]:
        """(True, the call's result), or (False, why it has to be recorded)."""
        reason = self.guards.broken()
        if reason is not None:
            return False, reason
        moving = self._moving(leaves)
        if isinstance(moving, str):
            return False, moving
        storages: list[Any] = [*self.fixed_storages, *map(_storage, moving)]
        values: list[Value] = list(map(_value, storages))
        buffers: list[Any] = list(map(_buffer, values))
        reason = self._unfit(storages, values, buffers)
        if reason is not None:
            return False, reason
        host = self.numbers()
        if isinstance(host, str):
            return False, host
        numbers, states, hypers = host
        arrays = self.replay.pack(numbers, self.plan.constant)
        given = self.flat.gather(buffers)
        layouts = self.replay.compiled.program.layouts
        taken = self.order(buffers)
        plain = [b.array for b in taken] if layouts is None else arguments(layouts, len(arrays), taken)
        arrays = [*arrays, *plain, *[pack.array for pack in given]]
        for generator, count in self.draws.items():
            generator.set_offset(generator.get_offset() + count)
        results = self.replay.run(arrays, self.given(buffers))
        for buffer, array in zip(self.pick_kept(buffers), self.pick_sources(results)):
            buffer.array = array
        for at, source, order in self.laid:
            values[at].buffer = replaced(buffers[at], order, results[source])
        packs = self.flat.keep(given, results, values)
        made = self._move(storages, values, buffers, results, packs)
        for clock, state in zip(self.environment.clocks, states):
            clock.set(state)
        self.hypers = hypers
        increment_version([*self.bumped, *self.pick_written(moving)])
        found = [self._leaf(leaf, made, moving, values, results, packs) for leaf in self.leaves]
        for scheduler in self.schedulers:
            scheduler.step()
        self.replays += 1
        return True, pytree.tree_unflatten(found, self.structure)

    def differs(self, seen: Seen, expected: Any) -> str | None:
        """How a recorded call differs from this capture, or None; `expected` is what `numbers` gave before it."""
        self.replays += 1
        first = self.family.first
        if not same(seen.state, first.state) or seen.writes != first.writes or seen.leaves != first.leaves:
            return difference(first, seen)
        if isinstance(expected, tuple):
            for numbers, record in number_records(seen.state):
                if any(exact(expected[0][i]) != exact(seen.numbers[i]) for i in numbers):
                    return f"a number of {where(record)} is not what was expected"
        return None

    def numbers(self) -> tuple[list[Any], list[dict[str, float]], list[list[dict[str, Any]]]] | str:
        """(the run-time numbers of the next call, the optimizers' states after it, their hyperparameters now)."""
        hypers = [hypers_of(optimizer) for optimizer in self.environment.steps]
        if hypers != self.hypers:
            for step, (now, before) in enumerate(zip(hypers, self.hypers)):
                for group, (a, b) in enumerate(zip(now, before)):
                    for name in a.keys() | b.keys():
                        if a.get(name) != b.get(name) and (step, group, name) not in self.varied:
                            return f"{name} of parameter group {group} changed for the first time"
        if not all(clock.untouched() for clock in self.environment.clocks):
            return "an optimizer's count of steps was changed"
        values, states = self.environment.evaluate(hypers)
        if regimes(values) != self.regimes:
            return "a hyperparameter became 0, or was; or another phase of the optimizer begins"
        numbers = self.plan.fill(values)
        return "a number may be a constant or not" if numbers is None else (numbers, states, hypers)

    def _moving(self, leaves: list[Any]) -> list[torch.Tensor] | str:
        """The gradients, assigned tensors and arguments of this call, or what is not as it was."""
        if not all(map(is_, map(_storage, self.fixed), self.fixed_storages)):
            return "a tensor has another storage"
        if [t.grad is None for t in self.graded] != self.ungraded:
            return "a gradient is there that was not, or not any more"
        found: list[torch.Tensor] = []
        for (container, key), meta in zip(self.moving, self.metas):
            if container is None:
                found.append(leaves[key])
                continue
            tensor = container.grad if key == GRAD else container.get(key)
            if tensor is None or meta_of(tensor) != meta:
                return "a gradient, or a tensor that the call assigns, has another shape, dtype or stride"
            found.append(tensor)
        return found

    def _unfit(self, storages: list[Any], values: list[Value], buffers: list[Any]) -> str | None:
        if None in buffers:
            for value in values:
                if value.buffer is None and value.recorder is not None:
                    value.recorder.cut()
            buffers[:] = map(_buffer, values)
            if None in buffers:
                return "a tensor's value was never computed"
        if not all(map(is_, map(_layout, values), self.layouts)):
            for value, layout in zip(values, self.layouts):
                if value.layout.key != layout.key:
                    return "a tensor's memory has another layout"
        if EMPTY in buffers or any(map(_error, buffers)):
            return "a tensor holds no value"
        for group in self.alike:
            if any(values[i] is not values[group[0]] for i in group):
                return "tensors do not share their value any more"
        if any(map(_pins, self.pick_watched(buffers))):
            return "a tensor that the call overwrites is used elsewhere"
        if list(map(getrefcount, self.pick_watched(values))) != self.references:
            return "a tensor that the call overwrites shares its value with a copy"
        return None

    def _move(
        self, storages: list[Any], values: list[Value], buffers: list[Any], results: list[Any], packs: list[Pack]
    ) -> dict[int, Value]:
        """Do the writes that need new values; returns these by slot."""
        made: dict[int, Value] = {}
        for write, at in self.moves:
            if write.slot is None:
                self._assign(write.place, None)
            elif write.fresh is None:
                assert at is not None
                storages[at]._value = self._made(write.slot, made, values, results, packs)
            else:
                self._assign(write.place, view(self._made(write.slot, made, values, results, packs), write.fresh))
        for i in self.released:
            buffers[i].release()
        return made

    def _made(
        self, slot: int, made: dict[int, Value], values: list[Value], results: list[Any], packs: list[Pack]
    ) -> Value:
        found = made.get(slot)
        if found is None:
            if slot in self.passed:
                found = values[self.passed[slot]]
            else:
                found = resident(self.slot_layouts[slot], self.flat.buffer(slot, results, packs))
            made[slot] = found
        return found

    def _assign(self, place: Key, tensor: torch.Tensor | None) -> None:
        container, key = self.targets[place]
        if key == GRAD:
            container.grad = tensor
        else:
            container[key] = tensor

    def _leaf(
        self,
        leaf: Any,
        made: dict[int, Value],
        moving: list[torch.Tensor],
        values: list[Value],
        results: list[Any],
        packs: list[Pack],
    ) -> Any:
        if isinstance(leaf, Fresh):
            return view(self._made(leaf.slot, made, values, results, packs), leaf.meta)
        if isinstance(leaf, Same):
            at = self.index[leaf.place]
            tensor = self.fixed[at] if at < len(self.fixed) else moving[at - len(self.fixed)]
            return tensor if leaf.meta is None else tensor.detach().as_strided(*leaf.meta)
        assert isinstance(leaf, Kept)
        return leaf.value


def meta_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a replay's tensor must have in common with the recorded one."""
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device.type


class _Held:
    _value: Value


def _alone() -> int:
    """What `attempt` counts for a value that one storage alone holds."""
    storage = _Held()
    storage._value = resident(Layout(None, (), ()), None)
    values = list(map(_value, [storage]))
    return next(map(getrefcount, _picker([0])(values)))


_ALONE = _alone()
