"""All code that knows PyTorch's dispatcher: the device, storages and views, kernels, random numbers, autocast."""
