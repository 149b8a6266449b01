"""What all routes share: matching, request heads and bodies, JSON, errors, results and the access log."""
