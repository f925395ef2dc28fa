"""What is measured of hashing: `rows.rows` gives every row."""
