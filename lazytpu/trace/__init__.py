"""The recorder and the trace trie: values, slots, run-time numbers, cuts. This room knows neither ops nor a
compiler."""
