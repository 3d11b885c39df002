"""Search the configuration space of a backend: compile in advance, check, race, store the result."""
