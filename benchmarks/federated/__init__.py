"""What is measured of federated: `rows.rows` gives every row."""
