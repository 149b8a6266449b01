"""Memory of a GPU: what the driver can do with it, pools, managed memory and ranges that grow."""
