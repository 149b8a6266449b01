"""Metrics. prometheus_client lives here only."""
