"""The trusted side of grading: starts the walled processes, passes their messages on, judges."""
