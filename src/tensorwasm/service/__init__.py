"""What is served, independent of HTTP: functions, invocations, jobs, sessions, snapshots, kernels, tenants, usage."""
