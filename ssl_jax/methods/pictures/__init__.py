"""What pictures are, and those that pictures of several methods and evaluations share."""
