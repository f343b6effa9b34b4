"""What torch asks of a device beside its ops: the module `torch.tpu`, generators, streams, memory, forks."""
