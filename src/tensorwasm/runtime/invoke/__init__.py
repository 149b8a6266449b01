"""How a call runs: the dispatcher, and the two ways behind it."""
