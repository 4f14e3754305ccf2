"""Images on the host: random-access sources, decoding, generated pictures, batches."""
