"""The sandboxes round submissions: namespaces, system calls, limits."""
