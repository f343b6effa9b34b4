"""A device besides its ops: the module `torch.tpu`, generators, streams, memory, forks."""
