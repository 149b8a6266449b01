"""Tables of one session: its buffers, kernels, streams, events, graphs, and the work under way."""
