"""What the package takes, beside plain formulations and other libraries: `python -m benchmarks NAME
...` in a checkout."""
