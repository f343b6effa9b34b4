"""Numbers for attributes, so that comparing them does not hash a tree each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Attribute


@dataclass
class AttributeNumbers:
    """Gives equal attributes equal numbers. Looks them up by identity where possible: hashing one takes 5 us."""

    by_value: dict[Attribute, int] = field(default_factory=dict[Attribute, int])
    # Holds the attribute too: an id is unique only among living objects.
    by_identity: dict[int, tuple[Attribute, int]] = field(default_factory=dict[int, tuple[Attribute, int]])

    def __getitem__(self, attribute: Attribute) -> int:
        known = self.by_identity.get(id(attribute))
        if known is not None:
            return known[1]
        number = self.by_value.setdefault(attribute, len(self.by_value))
        self.by_identity[id(attribute)] = (attribute, number)
        return number
