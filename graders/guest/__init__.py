"""The student's side of grading: the processes in which submissions run."""
