"""The execution of a batch of lanes: registers, scheduling, barriers, special registers."""
