"""What figures are measured against, in the same call and on the same device: a loop in C, other ways from Python."""
