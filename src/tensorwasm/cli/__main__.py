"""`python -m tensorwasm.cli`."""

from tensorwasm.cli import main

main()
