"""The addresses, one module a page; `system` has health, metrics and the API's own documentation."""
