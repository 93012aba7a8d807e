"""What only a notebook needs: sliders, curves that grow, the magics %%ranks and %%needs, a run step by step.

It runs in the kernel (curves also in ranks and scripts, where they are lines of text) and imports launch and
below, never training.
"""
