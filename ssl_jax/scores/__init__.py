"""From vectors to numbers: scores of features as functions of arrays."""
