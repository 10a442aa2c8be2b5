"""Ways to run programs: in this process, in lockstep, or on a pool of worker processes."""
