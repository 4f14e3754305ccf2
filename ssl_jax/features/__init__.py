"""From records to vectors: computes a network's features of a data set and stores them."""
