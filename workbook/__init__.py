"""From the sources in `solutions/` to the notebooks that students open, the solved ones, and the pages.

And the command `course` (`cli`; each command imports what it needs when it runs). It runs at a terminal or in
a batch job, in a process of its own, and may import graders and course_lib; neither imports it.
"""
