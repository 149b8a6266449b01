"""What figures are measured against in the same run."""
