"""torch.compile: Dynamo captures graphs, and each is one record of the trace.

- `routing`: which graphs of `torch.compile` come here, and what Dynamo is told about the device.
- `modes`, `varying`: what the user asks for and what varies, and what is said about it.
- `backend`: a captured graph, forward and backward through AOTAutograd, as callables.
- `graph`: such a callable, which records its graph as one edge of the trie.
- `host_part`: what a graph computes on the host, beside the record.
- `capture`: what the ops of a graph are as records.
- `splice`: these records as part of the trace of the caller.
- `node_lines`: the user's source lines of a graph's ops.
"""
