"""The pages: for each its routes, its answers and its job in one place."""
