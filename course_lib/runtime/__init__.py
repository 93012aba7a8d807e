"""The machinery below `launch`: what simulated and real ranks are made of.

`communication` is what both share, `simulator` runs ranks as threads of the launching process, `processes` as
processes here or on the nodes of an allocation; `request` is a launch as an engine gets it. It imports the
cluster, the errors and, where ranks are processes, this user's folder: never launch, figures or notebook.
"""
