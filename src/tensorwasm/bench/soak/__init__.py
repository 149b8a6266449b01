"""A day of a service in minutes: mixed requests of many tenants, faults among them, and what the process holds."""
