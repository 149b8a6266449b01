"""The conversation with a worker process: requests on their way, what it was told, who reads it, and its times."""
