"""Programs for TPUs that this machine does not have, compiled by libtpu from the name of a topology alone."""
