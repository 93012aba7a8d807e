"""What only a notebook needs: widgets, magics, live curves, stepping through collectives."""
