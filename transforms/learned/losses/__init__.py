"""What GeoPres can be trained to keep of a batch: each loss with its gradient."""
