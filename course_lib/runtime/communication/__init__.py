"""What simulated and real ranks share: calls, which belong together, their meaning and cost, what is told.

It runs in every process: in launchers, in ranks, in the grader and in its sandboxes. Imports torch and
`course_lib.cluster`, and nothing else of this library.
"""
