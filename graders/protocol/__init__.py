"""What crosses between grader and answer, as plain data: codec, framing, requests, the records of a run.

Runs on both sides, and trusts nothing that comes from the student's. It may import `graders.grading` for
what an answer is, and `graders.isolation` for its bounds.
"""
