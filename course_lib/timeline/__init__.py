"""What happened in a run: events, traffic, figures, traces."""
