"""What a guest can import, one room per interface."""
