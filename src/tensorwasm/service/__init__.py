"""What the edges serve: functions, invocations, jobs, sessions, snapshots, kernels, tenants, usage. Knows no HTTP."""
