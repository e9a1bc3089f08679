"""Many trainings that are compared: how they run, their records, statistics and nominal costs."""
