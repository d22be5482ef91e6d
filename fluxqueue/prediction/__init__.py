"""How long jobs run: the three times of a job, and predictions from ended runs. Pure."""
