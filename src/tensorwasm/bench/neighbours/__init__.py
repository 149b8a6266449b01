"""One tenant's trivial call beside guests of others that take all they can get."""
