"""The reactor: one thread that runs any number of guests as fibers, and what they wait for."""
