"""Training loops round a student's pieces."""
