"""From vectors to numbers: functions that compute scores from arrays."""
