"""From a program to machine code for the host, and to PTX."""
