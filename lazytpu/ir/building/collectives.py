"""Builder methods of collectives."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lazytpu.ir import collectives as rules
from lazytpu.ir.building.core import Core, integer_prop
from lazytpu.ir.groups import Groups, check_groups, lists_attr
from lazytpu.ir.types import string, tensor_type, type_of


class CollectiveMethods(Core):
    def group_rank(self, groups: Groups) -> SSAValue:
        """The rank of this device in its group (0-d i32)."""
        check_groups(groups)
        return self.one(rules.GroupRankOp, (), tensor_type("i32", ()), {"groups": lists_attr(groups)})

    def all_reduce(self, kind: str, xs: Sequence[SSAValue], groups: Groups) -> list[SSAValue]:
        """Each of xs reduced over the devices of the group by add, mul, max, min, and, or; sent as one message."""
        types = rules.all_reduce_types(kind, [type_of(x) for x in xs], groups)
        props = {"kind": string(kind), "groups": lists_attr(groups)}
        return list(self.op(rules.AllReduceOp, xs, types, props).results)

    def all_gather(self, x: SSAValue, dim: int, groups: Groups) -> SSAValue:
        """x of all devices of the group, concatenated along `dim`."""
        result = rules.all_gather_type(type_of(x), dim, groups)
        return self.one(rules.AllGatherOp, (x,), result, {"dim": integer_prop(dim), "groups": lists_attr(groups)})

    def reduce_scatter(self, kind: str, x: SSAValue, dim: int, groups: Groups) -> SSAValue:
        """One part, along `dim`, of x reduced over the devices of the group: the one at this device's rank."""
        result = rules.reduce_scatter_type(kind, type_of(x), dim, groups)
        props = {"kind": string(kind), "dim": integer_prop(dim), "groups": lists_attr(groups)}
        return self.one(rules.ReduceScatterOp, (x,), result, props)

    def all_to_all(self, x: SSAValue, split_dim: int, concat_dim: int, groups: Groups) -> SSAValue:
        """Sends the parts of x along `split_dim` to the devices of the group, and concatenates the received parts along
        `concat_dim`."""
        result = rules.all_to_all_type(type_of(x), split_dim, concat_dim, groups)
        dims = {"split_dim": integer_prop(split_dim), "concat_dim": integer_prop(concat_dim)}
        return self.one(rules.AllToAllOp, (x,), result, dims | {"groups": lists_attr(groups)})

    def collective_permute(self, x: SSAValue, pairs: Groups) -> SSAValue:
        """On the target of each pair [source, target], x of the source; zeros on devices that are not a target."""
        result = rules.collective_permute_type(type_of(x), pairs)
        return self.one(rules.CollectivePermuteOp, (x,), result, {"pairs": lists_attr(pairs)})
