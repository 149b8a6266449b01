"""The device port: its protocols, and the values that cross it."""
