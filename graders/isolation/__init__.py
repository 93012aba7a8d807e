"""The sandboxes round submissions: an outer one by bubblewrap or Apptainer, an inner one for each process
by namespaces and seccomp, and bounds on what runs in them.

Runs in the grading process and, for the inner sandbox, in the fork server; hence it imports neither PyTorch
nor anything else of the graders.
"""
