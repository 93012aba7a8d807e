"""The machinery below `launch`: what simulated and real ranks are made of."""
