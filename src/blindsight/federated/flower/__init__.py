"""The same roles across machines, on Flower's deployment engine: TLS and node authentication on,
telemetry off.
"""
