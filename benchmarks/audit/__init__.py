"""What is measured of audit: `rows.rows` gives every row."""
