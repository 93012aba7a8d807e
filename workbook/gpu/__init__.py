"""What a node with GPUs is worth to the workbook: `course gpu`.

It runs the tests that need a GPU and all units on processes, and sets what it measures beside what the
simulator says and what people would use instead.
"""
