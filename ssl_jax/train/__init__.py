"""Training: state, optimizer, schedules, step, loop, checkpoints and logs."""
