"""From graded episodes to batches: advantages, samples, packing, the staleness window, the loss."""
