"""From chosen shardings to a plan: local programs, explicit collectives, and their causes."""
