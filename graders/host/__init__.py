"""The trusted side of grading: starts the sandboxed processes, passes their messages on, has a submission
judged.

Runs in the grading process, which runs no line of a submission. It imports nothing of `graders.guest`.
"""
