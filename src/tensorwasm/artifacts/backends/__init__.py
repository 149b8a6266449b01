"""Where the artifact store keeps catalogs and bytes: a disk, memory, an object store, or one with a cache in front."""
