"""A third party's backend on a library that has the array API standard and nothing else."""
