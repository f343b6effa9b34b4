"""From a trace to its results: the strategy of a cut, and how it runs."""
