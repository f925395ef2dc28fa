"""What is measured of reading files: `rows.rows` gives every row."""
