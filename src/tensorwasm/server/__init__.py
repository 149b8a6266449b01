"""HTTP: routes over the service, on Granian's RSGI."""
