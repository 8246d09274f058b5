"""From run files to figures and comparisons: collect, then figures and compare. Reads files only."""
