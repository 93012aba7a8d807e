"""The student's side of grading: the fork server, and the processes in which submissions and ranks run.

Whatever stands here the student's code can read and change. It imports no checks, no random inputs and
nothing of `graders.host`; of the units only their drivers, by name.
"""
