"""What launches, memory, quotas and waiting guests cost on a GPU or on the emulator."""
