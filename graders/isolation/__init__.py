"""The walls round submissions: namespaces, system calls, limits."""
