"""The package beside what a user would take instead: the same work, weights and tokens, in turn."""
