"""Custom kernels: functions written in JAX or Pallas as ops on tensors (`lazytpu.pallas`), and arrays and functions
shared with JAX (`lazytpu.interop`)."""
