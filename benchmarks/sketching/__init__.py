"""What is measured of sketching: `rows.rows` gives every row."""
