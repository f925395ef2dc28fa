"""What runs in the background, one module a kind of job: `run(arguments, place) -> result`."""
