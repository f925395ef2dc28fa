"""What is measured of metric: `rows.rows` gives every row."""
