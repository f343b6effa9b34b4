"""The device apart from its ops: the module `torch.tpu`, generators, streams, memory, forks."""
