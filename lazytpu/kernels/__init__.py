"""Custom kernels: functions written in JAX or Pallas as ops on tensors (`lazytpu.pallas`), and arrays and functions
shared with JAX (`lazytpu.interop`)."""

import lazytpu.runtime.xla.client  # noqa: F401  (first: importing jax there disturbs nothing)
