"""What all routes share: matching, request heads and bodies, JSON, errors and results."""
