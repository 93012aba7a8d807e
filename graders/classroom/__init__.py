"""A whole class: judges in processes of their own or on a cluster, the results, the gradebook, the pages.

Runs in the instructor's process. It imports whatever stands below, but neither `student` nor `guest`.
"""
