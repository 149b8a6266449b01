"""Makes what offloaded loops need, off the request path: cut modules, plans and machine code, which are kept signed."""
