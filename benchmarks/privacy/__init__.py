"""What is measured of privacy: `rows.rows` gives every row."""
