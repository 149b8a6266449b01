"""HTTP: connections, and the routes over the service."""
