"""What runs in the student's kernel or terminal: check, hints, progress, reset."""
