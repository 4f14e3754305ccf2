"""Training: state, optimizer, schedules, step, loop, checkpoints, sharding and logs."""
