"""Right answers of unit 04, written differently."""
