"""Faults thrown at real runs until they are done: `python -m tests.chaos --help`."""
