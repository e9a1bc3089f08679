"""Training: the one loop (`epochs`), trainings under a policy (`loop`), their state and scores."""
