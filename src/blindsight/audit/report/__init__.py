"""What an audit says: `verdict` (a line), `page` (HTML, JSON, text and figures), `file_report`."""
