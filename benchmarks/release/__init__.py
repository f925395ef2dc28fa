"""What is measured of the page that a receiver opens: `rows.rows` gives every row."""
