"""HTTP/1.1 on a connection: requests as they arrive, and answers as they leave."""
