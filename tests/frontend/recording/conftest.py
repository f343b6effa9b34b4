"""Each test records as in a process that has just started, so that its counts do not depend on earlier tests."""

import pytest


@pytest.fixture(autouse=True)
def of_its_own(fresh_traces: None) -> None:
    """Use a separate trie: traces with the same first ops share states, and so the cuts of earlier tests."""
