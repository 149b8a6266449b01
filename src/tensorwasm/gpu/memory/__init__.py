"""Memory that a host and a device share."""
