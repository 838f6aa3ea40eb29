"""What every transform is: the contract of fitting and applying, parameters, signatures, checkpoints."""
