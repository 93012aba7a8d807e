"""What runs in the student's kernel or terminal: check, hints, progress, reset.

It imports what teaches: `graders.grading`, `graders.submissions`, and `graders.guest` to run the answer in
the kernel. Nothing here is out of the student's reach. What needs PyTorch is imported when it is called.
"""
