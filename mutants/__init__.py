"""Mutation testing of the graders: each solution is broken mechanically, and its grader has to see it.

`make mutants` makes a mutant wherever an operator of `mutants.operators` fits, lets the exercise's own grader
judge it, and shows those that earn all points. Such a mutant is either equivalent to the solution, for which
somebody gives the reason in `equivalent/`, or it is a hole in the grader.

Why no library. mutmut 3.8 and Cosmic Ray 8.7 are kept, and both can be asked for the mutants of a text.
Cosmic Ray, however, drops no statement, no argument and no `wait()`, `clone()` or `% size`, and swaps
nothing; it is untyped and brings aiohttp, GitPython and SQLAlchemy. mutmut drops no statement and swaps
nothing either, and most of what it makes (`x = None`, None for an argument, XX round a text) raises at the
first line that it touches: any grader sees that, so the rate would flatter. Its operators are no public
interface. Both run a test command on a file; here a mutant is a cell, judged in milliseconds beside the cells
that it needs.
"""
