"""What the workbook does, side by side with what a user would use instead: `make bench`.

The machine may be busy, so nothing here is a test: each row is a ratio measured in one run.
"""
