"""The folder that is shared: signed, searchable in a browser, checked when it is opened."""
