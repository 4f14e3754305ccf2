"""What this project trains and measures itself: `python -m experiments NAME ...` in a checkout."""
