"""What students hand in: notebooks and Python files, read within bounds and without running them.

Runs in the grading process; its cells cross over to the guest, which may import `cells`. It imports
`graders.grading` only.
"""
