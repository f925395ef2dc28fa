"""What is measured of tagging: `rows.rows` gives every row."""
