"""How a run happens: configuration, the one loop, the run store, the tasks and the analysis."""
