"""Functions, their versions and aliases, and the modules behind them."""
