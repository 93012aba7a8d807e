"""What crosses between grader and answer, as plain data."""
