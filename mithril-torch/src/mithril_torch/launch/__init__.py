"""How processes of a job start and find each other."""
