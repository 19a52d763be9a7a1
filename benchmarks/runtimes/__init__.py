"""Facts about engine runtimes, read from what their projects publish."""
