"""From the sources in `solutions/` to the notebooks that students open, the solved ones, and the pages."""
