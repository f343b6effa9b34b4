"""torch.compile: Dynamo captures graphs, and each graph is recorded as one record of the trace.

- `routing`: sends the device's graphs of `torch.compile` here, and describes the device to Dynamo.
- `modes`, `varying`: the user's `mode=` and `options=`; warnings about sizes and floats that vary.
- `backend`: compiles a captured graph, forward and backward through AOTAutograd, to callables.
- `graph`: such a callable, which records its graph as one edge of the trie.
- `host_part`: splits off the part of a graph that runs on the host.
- `capture`: expands a graph into records.
- `splice`: adds these records to the caller's trace.
- `node_lines`: the user's source lines of a graph's ops.
"""
