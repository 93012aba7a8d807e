"""What students hand in: notebooks and Python files, read without running them."""
