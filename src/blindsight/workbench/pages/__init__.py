"""The pages: one module per page, with its routes, its answers and its background job."""
