"""The recorder and the trace trie: values, slots, run-time numbers, cuts. Knows no op and no compiler."""
