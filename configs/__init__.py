"""Configs as published and small ones for a CPU: `ssl-jax show --config=sop:vits16`."""
