"""What is measured of growth: `rows.rows` gives every row."""
