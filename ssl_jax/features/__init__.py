"""From records to vectors: a network's features of a data set, and where they are stored."""
