"""The trusted side of grading: starts the sandboxed processes, passes their messages on, judges."""
