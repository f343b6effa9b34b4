"""Each test records with an empty trie, as in a new process, so that its counts do not depend on earlier tests."""

import pytest


@pytest.fixture(autouse=True)
def separate_trie(fresh_traces: None) -> None:
    """Traces that begin with the same ops share states, and with them the places where earlier tests cut."""
