"""Reports: `verdict` (one row), `page` (HTML, JSON, text and figures), `file_report` (one file)."""
