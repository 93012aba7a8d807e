"""How runs, states and numbers are drawn: one style, and a text for those who do not see the figure."""
