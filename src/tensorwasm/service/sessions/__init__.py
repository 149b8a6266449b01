"""Sessions: instances that several calls share, in memory while they are used, otherwise in the artifact store.

`entries` orders the operations of each session, `persistence` writes rows and saves and holds the lease, `memory` loads
and evicts, and `instances` uses the runtime.
"""
