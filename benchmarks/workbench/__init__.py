"""What is measured of service: `rows.rows` gives every row."""
