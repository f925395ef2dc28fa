"""What every page stands on: settings, keys, the gate, jobs, uploads, and the process that opens
images.
"""
