"""Programs for TPUs that are not there: compiled by libtpu, which needs the name of a topology alone."""
