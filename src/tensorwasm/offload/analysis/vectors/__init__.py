"""Code for vectors as code for their lanes."""
