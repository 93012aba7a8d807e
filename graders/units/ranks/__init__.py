"""What units share whose answers are called by ranks: features, the stage on which cases are tried, rows."""
