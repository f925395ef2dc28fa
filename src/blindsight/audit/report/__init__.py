"""What an audit says: `verdict` (a line), `page` (HTML, JSON), `text` (terminal, Markdown),
`figures`, `advice`.
"""
