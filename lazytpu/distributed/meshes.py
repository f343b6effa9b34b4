"""DeviceMeshes of imagined jobs: each equals meshes of its own job only.

DTensor caches its decisions by mesh. A process may be another rank in its next job, where a mesh of the same ranks has
other groups, and this process other coordinates.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from lazytpu.distributed import imagined

JOB = "_lazytpu_imagined_job"  # the attribute of a mesh


def adapt(kind: Any) -> None:
    """Patch DeviceMesh, once it is imported."""
    create, equals = kind.__init__, kind.__eq__

    @wraps(create)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if imagined.JOB is not None:
            setattr(self, JOB, imagined.JOB)
        create(self, *args, **kwargs)

    @wraps(equals)
    def eq(self: Any, other: object) -> bool:
        return getattr(self, JOB, None) is getattr(other, JOB, None) and equals(self, other)

    kind.__init__, kind.__eq__ = init, eq
