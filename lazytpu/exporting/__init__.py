"""Export: programs of PyTorch as files that JAX, any StableHLO tool, and lazytpu itself load (`lazytpu.export`)."""
