"""What users run."""

import experiments  # noqa: F401  # says what is missing, before a script imports it
