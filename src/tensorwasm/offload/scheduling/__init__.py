"""From a nest to a program: dependences, an order in which most runs in parallel, and the loops that scan it."""
