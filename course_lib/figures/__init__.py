"""How runs, states and numbers are drawn: one style, and a text for those who do not see the figure.

It runs in the kernel or wherever a run is looked at, never in a rank. It asks of a run what `drawn_run` says,
of a deadlock its `WaitGraph`, and imports runtime and the cluster: never launch, which draws with it.
"""
