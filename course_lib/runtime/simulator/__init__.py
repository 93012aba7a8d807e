"""A cluster inside this process: ranks as threads or captured programs, virtual time, exact deadlock reports.

It runs in the process that launches; `virtual_time`, `thread_driver` and `simulated_network` in the
grader too, with ranks in processes of their own. Imports `communication` and `course_lib.cluster`, never
`processes`, `launch` or anything above them.
"""
